// Code that the measuring programs of all C APIs share: rows, the clock and turns on command.
//
// A program is started once. Then it reads commands from standard input, one per line:
//   answers   print the probability of every row as a JSON array
//   turn N    make N untimed calls, then time every call; print nanoseconds per call as a JSON array
// The race between programs and Python calls (race.py) sends the commands in turns.
#ifndef TURNS_H
#define TURNS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

// Read a file of little-endian float32. The caller owns the result.
static float *read_floats(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, "cannot be read");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    float *values = malloc(size);
    if (fread(values, 1, size, file) != (size_t)size) fail(path, "is shorter than it was");
    fclose(file);
    *count = size / sizeof(float);
    return values;
}

static long long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// `call(at)` makes call number `at`. After it, `answer(at, row)` returns the probability of one of its rows.
static void serve_turns(size_t calls, size_t rows_per_call, void (*call)(size_t), double (*answer)(size_t, size_t)) {
    char line[64];
    long long *times = malloc(calls * sizeof(long long));
    puts("{}");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "answers", 7)) {
            for (size_t at = 0; at < calls; at++) {
                call(at);
                for (size_t row = 0; row < rows_per_call; row++)
                    printf("%s%.9g", at || row ? "," : "[", answer(at, row));
            }
        } else {
            size_t warm = strtoul(line + 5, NULL, 10);
            for (size_t at = 0; at < warm; at++) call(at % calls);
            for (size_t at = 0; at < calls; at++) {
                long long began = nanoseconds();
                call(at);
                times[at] = nanoseconds() - began;
            }
            for (size_t at = 0; at < calls; at++) printf("%s%lld", at ? "," : "[", times[at]);
        }
        puts("]");
        fflush(stdout);
    }
}

#endif
