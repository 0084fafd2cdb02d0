// LightGBM through its C API for single rows: lightgbm_turns MODEL.txt ROWS.f32 FEATURES
//
// One call is LGBM_BoosterPredictForMatSingleRowFast, LightGBM's call for low latency, with one thread.
// Everything that can be prepared is prepared once.
#include "turns.h"

#include <stdint.h>

// As in LightGBM/c_api.h of version 4.
typedef void *Handle;
int LGBM_BoosterCreateFromModelfile(const char *path, int *iterations, Handle *out);
int LGBM_BoosterPredictForMatSingleRowFastInit(Handle booster, int kind, int start, int iterations, int type,
                                               int32_t columns, const char *parameters, Handle *out);
int LGBM_BoosterPredictForMatSingleRowFast(Handle fast, const void *row, int64_t *length, double *result);
const char *LGBM_GetLastError(void);

enum { FLOAT32 = 0, NORMAL = 0 };

static Handle booster, fast;
static float *rows;
static size_t features;
static double result[1];

static void check(int code) {
    if (code) fail("LightGBM", LGBM_GetLastError());
}

static void call(size_t at) {
    int64_t length;
    check(LGBM_BoosterPredictForMatSingleRowFast(fast, rows + at * features, &length, result));
}

static double answer(size_t at, size_t row) {
    (void)at, (void)row;
    return result[0];
}

int main(int count, char **arguments) {
    if (count != 4) fail(arguments[0], "wants MODEL ROWS FEATURES");
    size_t values;
    int iterations;
    features = strtoul(arguments[3], NULL, 10);
    rows = read_floats(arguments[2], &values);
    check(LGBM_BoosterCreateFromModelfile(arguments[1], &iterations, &booster));
    check(LGBM_BoosterPredictForMatSingleRowFastInit(booster, NORMAL, 0, -1, FLOAT32, (int32_t)features,
                                                     "num_threads=1", &fast));
    serve_turns(values / features, 1, call, answer);
    return 0;
}
