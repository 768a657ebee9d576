/* tap.h: the Test Anything Protocol for plain C tests: one line a check, the count at the end. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static int tap_n, tap_n_failed;

/* Returns @ok. */
__attribute__((format(printf, 2, 3), unused)) static bool tap_ok(bool ok, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%s %d - ", ok ? "ok" : "not ok", ++tap_n);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
    tap_n_failed += !ok;
    return ok;
}

__attribute__((format(printf, 1, 2), unused)) static void tap_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("ok %d # SKIP ", ++tap_n);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

__attribute__((format(printf, 1, 2), unused)) static void tap_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("# ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

/* For what a test cannot go on without. */
#define tap_require(condition)                                                                               \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("Bail out! %s:%d: %s\n", __FILE__, __LINE__, #condition);                                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* Ends the program: `return tap_done();` */
__attribute__((unused)) static int tap_done(void)
{
    printf("1..%d\n", tap_n);
    return tap_n_failed > 0;
}
