// ONNX Runtime through its C API: onnxruntime_turns MODEL.onnx ROWS.f32 FEATURES ROWS_PER_CALL OUTPUT
//
// One call is OrtApi::Run for only the probabilities, with one thread. Input and output tensors are in memory of
// the program and are created once.
#include "turns.h"

#include <stdint.h>

// The wheel has no header. OrtApi is a table of functions whose order never changes (onnxruntime_c_api.h: "This
// order must be kept"). These are the positions of the functions that are called.
enum {
    GET_ERROR_MESSAGE = 2,
    CREATE_ENV = 3,
    CREATE_SESSION = 7,
    RUN = 9,
    CREATE_SESSION_OPTIONS = 10,
    SET_INTRA_OP_NUM_THREADS = 24,
    SET_INTER_OP_NUM_THREADS = 25,
    CREATE_TENSOR_WITH_DATA = 49,
    CREATE_CPU_MEMORY_INFO = 69,
};
enum { WARNING = 2, ARENA_ALLOCATOR = 1, MEMORY_DEFAULT = 0, FLOAT = 1, API_VERSION = 17 };
typedef void *Status;
typedef struct {
    const void *const *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} ApiBase;
const ApiBase *OrtGetApiBase(void);

static const void *const *api;
static void *session;
static void **inputs, **outputs;
static float *results;
static size_t block;
static const char *input_names[] = {"x"}, *output_names[1];

static void check(Status status) {
    if (status) fail("ONNX Runtime", ((const char *(*)(Status))api[GET_ERROR_MESSAGE])(status));
}

static void call(size_t at) {
    typedef Status Run(void *, const void *, const char *const *, void *const *, size_t, const char *const *, size_t,
                       void **);
    check(((Run *)api[RUN])(session, NULL, input_names, &inputs[at], 1, output_names, 1, &outputs[at]));
}

static double answer(size_t at, size_t row) {
    return results[(at * block + row) * 2 + 1];
}

static void *tensor(void *memory, float *data, int64_t rows, int64_t columns) {
    typedef Status Create(void *, void *, size_t, const int64_t *, size_t, int, void **);
    int64_t shape[] = {rows, columns};
    void *made = NULL;
    check(((Create *)api[CREATE_TENSOR_WITH_DATA])(memory, data, rows * columns * sizeof(float), shape, 2, FLOAT,
                                                   &made));
    return made;
}

int main(int count, char **arguments) {
    if (count != 6) fail(arguments[0], "wants MODEL ROWS FEATURES ROWS_PER_CALL OUTPUT");
    size_t values, features = strtoul(arguments[3], NULL, 10);
    block = strtoul(arguments[4], NULL, 10);
    output_names[0] = arguments[5];
    float *rows = read_floats(arguments[2], &values);
    size_t calls = values / features / block;
    api = OrtGetApiBase()->GetApi(API_VERSION);
    if (!api) fail("ONNX Runtime", "has no such version of the API");
    void *env, *options, *memory;
    check(((Status(*)(int, const char *, void **))api[CREATE_ENV])(WARNING, "turns", &env));
    check(((Status(*)(void **))api[CREATE_SESSION_OPTIONS])(&options));
    check(((Status(*)(void *, int))api[SET_INTRA_OP_NUM_THREADS])(options, 1));
    check(((Status(*)(void *, int))api[SET_INTER_OP_NUM_THREADS])(options, 1));
    check(((Status(*)(void *, const char *, void *, void **))api[CREATE_SESSION])(env, arguments[1], options, &session));
    check(((Status(*)(int, int, void **))api[CREATE_CPU_MEMORY_INFO])(ARENA_ALLOCATOR, MEMORY_DEFAULT, &memory));
    inputs = malloc(calls * sizeof *inputs);
    outputs = malloc(calls * sizeof *outputs);
    results = calloc(calls * block * 2, sizeof(float));
    for (size_t at = 0; at < calls; at++) {
        inputs[at] = tensor(memory, rows + at * block * features, (int64_t)block, (int64_t)features);
        outputs[at] = tensor(memory, results + at * block * 2, (int64_t)block, 2);
    }
    serve_turns(calls, block, call, answer);
    return 0;
}
