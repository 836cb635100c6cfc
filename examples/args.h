/* args.h - what the examples and benches say of themselves: their usage, a wrong argument by its name, and how far they
   are. C99 and C++11. */

#ifndef EXAMPLES_ARGS_H
#define EXAMPLES_ARGS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ARGS_TEXT_(x) #x
#define ARGS_TEXT(x) ARGS_TEXT_(x) /* the number behind a macro, for a usage text */

/* Prints the usage and ends the program, if --help or -h is among the arguments. */
static inline void args_help(int argc, char **argv, const char *usage)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(usage, stdout);
            exit(0);
        }
}

/* Says which argument is wrong. value: NULL if there is no such argument, "" if it has no value, else the value that is wrong.
   Returns the exit status, 2. */
static inline int args_wrong(const char *program, const char *name, const char *value)
{
    if (!value) fprintf(stderr, "%s: there is no argument '%s'", program, name);
    else if (!*value) fprintf(stderr, "%s: '%s' needs a value", program, name);
    else fprintf(stderr, "%s: '%s' cannot be '%s'", program, name, value);
    fprintf(stderr, "; see %s --help\n", program);
    return 2;
}

/* Says which arguments do not go together. Returns the exit status, 2. */
static inline int args_clash(const char *program, const char *what)
{
    fprintf(stderr, "%s: %s; see %s --help\n", program, what, program);
    return 2;
}

/* For a program without arguments: ends it if there are any. */
static inline void args_none(int argc, char **argv, const char *usage)
{
    args_help(argc, argv, usage);
    if (argc > 1) exit(args_wrong(argv[0], argv[1], NULL));
}

/* A whole number from 1 to `most`, 0 if the text is none. */
static inline size_t args_number(const char *text, size_t most)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && number <= most ? (size_t)number : 0;
}

/* Shows that `done` parts of `all` are done: a bar that is drawn again on a terminal, a line every five seconds elsewhere.
   `what` stands before the bar and `more` behind it. One thread calls it. last: the line stays. */
static inline void args_bar(const char *what, size_t done, size_t all, const char *more, int last)
{
    static const char bar[] = "##############################";
    static double shown;
    const int width = (int)sizeof bar - 1, full = (int)(done * (sizeof bar - 1) / all);
    struct timespec t;
    double now;
    int terminal = 0;
#ifndef USE_MPI /* mpirun makes every output look like a terminal */
    terminal = isatty(STDOUT_FILENO);
#endif
    clock_gettime(CLOCK_MONOTONIC, &t);
    now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (shown == 0) shown = now;
    if (!terminal && !last && now < shown + 5) return;
    shown = now;
    printf("%s%-18s [%.*s%*s] %lu/%lu%s%s", terminal ? "\r" : "", what, full, bar, width - full, "", (unsigned long)done,
           (unsigned long)all, more, terminal ? last ? "\033[K\n" : "\033[K" : "\n");
    fflush(stdout);
}

/* Removes the bar from a terminal: a line of a table comes in its place. */
static inline void args_clear(void)
{
#ifndef USE_MPI
    if (isatty(STDOUT_FILENO)) fputs("\r\033[K", stdout);
#endif
}

#endif /* EXAMPLES_ARGS_H */
