// XGBoost through its C API: xgboost_turns MODEL.ubj ROWS.f32 FEATURES ROWS_PER_CALL
//
// One call is XGBoosterPredictFromDense on rows in memory, with one thread and a proxy matrix that is created
// once. The descriptions of the rows are written before.
#include "turns.h"

#include <stdint.h>

// As in xgboost/c_api.h of version 3.2.
typedef void *Handle;
int XGBoosterCreate(const Handle data[], uint64_t count, Handle *out);
int XGBoosterLoadModel(Handle booster, const char *path);
int XGBoosterSetParam(Handle booster, const char *name, const char *value);
int XGProxyDMatrixCreate(Handle *out);
int XGBoosterPredictFromDense(Handle booster, const char *values, const char *config, Handle proxy,
                              const uint64_t **shape, uint64_t *dimensions, const float **result);
const char *XGBGetLastError(void);

static Handle booster, proxy;
static char (*described)[160];
static const float *result;
static const char *CONFIG = "{\"type\":0,\"training\":false,\"iteration_begin\":0,\"iteration_end\":0,"
                            "\"missing\":NaN,\"strict_shape\":false,\"cache_id\":0}";

static void check(int code) {
    if (code) fail("XGBoost", XGBGetLastError());
}

static void call(size_t at) {
    const uint64_t *shape;
    uint64_t dimensions;
    check(XGBoosterPredictFromDense(booster, described[at], CONFIG, proxy, &shape, &dimensions, &result));
}

static double answer(size_t at, size_t row) {
    (void)at;
    return result[row];
}

int main(int count, char **arguments) {
    if (count != 5) fail(arguments[0], "wants MODEL ROWS FEATURES ROWS_PER_CALL");
    size_t values, features = strtoul(arguments[3], NULL, 10), block = strtoul(arguments[4], NULL, 10);
    float *rows = read_floats(arguments[2], &values);
    size_t calls = values / features / block;
    check(XGBoosterCreate(NULL, 0, &booster));
    check(XGBoosterLoadModel(booster, arguments[1]));
    check(XGBoosterSetParam(booster, "nthread", "1"));
    check(XGProxyDMatrixCreate(&proxy));
    described = malloc(calls * sizeof *described);
    for (size_t at = 0; at < calls; at++)
        snprintf(described[at], sizeof *described,
                 "{\"data\":[%zu,true],\"shape\":[%zu,%zu],\"typestr\":\"<f4\",\"version\":3}",
                 (size_t)(rows + at * block * features), block, features);
    serve_turns(calls, block, call, answer);
    return 0;
}
