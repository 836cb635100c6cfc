/* A random test: groups of workers of every kind go through random operations and random faults,
   and are compared with what must hold, and with a twin that has no faults and other options
   wherever the manual promises the same bits.

     test_random [--seconds N] [--first S] [--cases N] [--seed S]

   A case follows from its seed alone. What a case finds is printed with the seed: --seed S runs
   this case again and prints every operation. The workers of the group stand in one thread. Their
   transport carries out requests in a random order, and fails where it is told. Those of the twin
   stand there too, or each in a thread, where they call gcomp_exchange. */

#include "hostile_cases.h"

/* ---------------- */

static double seconds;
static uint64_t first_seed = 1;
static size_t most_cases = SIZE_MAX;
static uint64_t hostile_seed = 1, hostile_cases;
static int says_seeds;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void workers_agree_conserve_and_recover(void)
{
    const double until = now() + seconds;
    for (uint64_t seed = first_seed; cases < most_cases && found_in_all < 3; seed++) {
        run_case(seed);
        if (now() > until) break;
    }
    CHECK(!found_in_all);
    printf("# %lu cases, %lu operations, %lu steps of a group or its twin, %lu of them with a fault\n", cases,
           operations, steps, faults);
}

/* As many cases as asked for, from a seed on. */
static void receivers_of_a_hostile_worker_answer_or_go_on(void)
{
    cases = operations = steps = 0;
    found_in_all = 0;
    for (uint64_t seed = hostile_seed; cases < hostile_cases && found_in_all < 3; seed++) {
        if (says_seeds) printf("# seed %llu\n", (unsigned long long)seed);
        run_hostile_case(seed);
    }
    CHECK(!found_in_all);
    printf("# %lu cases, %lu operations, %lu steps; %lu collectives with other bytes, %lu results "
           "are GCOMP_OK, %lu are errors; %lu saves are refused\n",
           cases, operations, steps, party.struck, party.ok, party.errors, party.refused);
}

static int run_hostile(int argc, char **argv)
{
    hostile_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    hostile_cases = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    says_seeds = 1;
    verbose = hostile_cases == 1;
    RUN(receivers_of_a_hostile_worker_answer_or_go_on);
    return test_end();
}

int main(int argc, char **argv)
{
    const char *limit = getenv("GCOMP_TEST_SECONDS");
    if (argc > 1 && !strcmp(argv[1], "hostile")) return run_hostile(argc, argv);
    hostile_cases = test_is_long() ? 2000 : test_is_slow() ? 50 : 200;
    seconds = limit ? atof(limit) : test_is_long() ? 60 : 10;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
        if (!strcmp(argv[i], "--first")) first_seed = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--cases")) most_cases = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--seed"))
            first_seed = strtoull(argv[i + 1], NULL, 10), most_cases = 1, verbose = 1;
    }
    RUN(workers_agree_conserve_and_recover);
    if (!verbose) RUN(receivers_of_a_hostile_worker_answer_or_go_on);
    return test_end();
}
