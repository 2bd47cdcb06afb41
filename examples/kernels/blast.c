/* BLAST: a search for similar sequences in a database, by a master and its workers, as mpiBLAST does it (the one program of
 * C. Wang and others, "Hybrid Checkpointing for MPI Jobs in HPC Environments", that is no NAS benchmark).
 *
 * Each worker, a process, has a fragment of the database in memory, which is never written once it is there; only tables of
 * the query are. A query is a piece of the database in which letters have been changed: words of it are looked up, and
 * where one is found the alignment is extended to both sides. Verified by the place that each query is from. x is the number of
 * mebibytes in each fragment, y the number of workers. */
#include "kernel.h"

#include <sys/wait.h>
#include <unistd.h>

#define SEED 271u
#define LETTERS 512
/* Letters of two bits in a word that is looked up. */
#define WORD 8
#define WORDS (1u << (2 * WORD))
/* An alignment ends where its score has fallen by so much. */
#define DROP 12
/* One in so many letters of a query is changed. */
#define CHANGED 13

struct hit {
    int64_t score, position;
};

struct worker {
    pid_t pid;
    int queries, hits;
};

static unsigned char letter(int64_t position)
{
    return random_bits(SEED, (uint64_t)position / 32) >> 2 * (position % 32) & 3;
}

static int64_t origin(long step, int64_t total)
{
    return (int64_t)(random_bits(SEED + 1, (uint64_t)step) % (uint64_t)(total - LETTERS));
}

static bool whole(ssize_t done, size_t bytes, const char *what)
{
    if (done == (ssize_t)bytes)
        return true;
    if (done != 0)
        perror(what);
    return false;
}

/* The best alignment through letter `at` of the fragment and `place` of the query. */
static struct hit extend(const unsigned char *fragment, int64_t letters, const unsigned char *query, int64_t at, int place)
{
    int64_t score = 0, best = 0, first = at;
    for (int64_t i = at, j = place; i < letters && j < LETTERS && score > best - DROP; i++, j++) {
        score += fragment[i] == query[j] ? 1 : -2;
        if (score > best)
            best = score;
    }
    score = best;
    for (int64_t i = at - 1, j = place - 1; i >= 0 && j >= 0 && score > best - DROP; i--, j--) {
        score += fragment[i] == query[j] ? 1 : -2;
        if (score > best) {
            best = score;
            first = i;
        }
    }
    return (struct hit){best, first};
}

static struct hit search(const unsigned char *fragment, int64_t letters, const unsigned char *query, uint16_t *places)
{
    memset(places, 0, WORDS * sizeof *places);
    unsigned word = 0;
    for (int j = 0; j < LETTERS; j++) {
        word = (word << 2 | query[j]) & (WORDS - 1);
        if (j >= WORD - 1)
            places[word] = (uint16_t)(j + 1);
    }
    struct hit best = {0, -1};
    for (int64_t i = 0; i < letters; i++) {
        word = (word << 2 | fragment[i]) & (WORDS - 1);
        if (i < WORD - 1 || !places[word])
            continue;
        const struct hit hit = extend(fragment, letters, query, i, places[word] - 1);
        if (hit.score > best.score)
            best = hit;
    }
    return best;
}

/* Answers queries until there are no more. */
static void work(int64_t first, int64_t letters, int queries, int hits)
{
    unsigned char *fragment = allocate((size_t)letters), query[LETTERS];
    uint16_t *places = allocate(WORDS * sizeof *places);
    for (int64_t i = 0; i < letters; i++)
        fragment[i] = letter(first + i);
    while (whole(read(queries, query, sizeof query), sizeof query, "read")) {
        struct hit hit = search(fragment, letters, query, places);
        hit.position += first;
        if (!whole(write(hits, &hit, sizeof hit), sizeof hit, "write"))
            break;
    }
    _exit(0);
}

static struct worker begin(long number, int64_t letters)
{
    int down[2], up[2];
    if (pipe(down) || pipe(up)) {
        perror("pipe");
        exit(1);
    }
    fflush(stdout);
    const pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0) {
        /* With an end of its own it would not see the master's end. */
        close(down[1]);
        close(up[0]);
        work(number * letters, letters, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    return (struct worker){pid, down[1], up[0]};
}

int main(int argc, char **argv)
{
    static const struct size sizes[] = {
        {'S', 2, 2, 1, 100},  {'W', 8, 2, 1, 60},   {'A', 32, 2, 1, 40},
        {'B', 128, 2, 1, 20}, {'C', 256, 4, 1, 12}, {0, 0, 0, 0, 0},
    };
    const struct size size = kernel_options(argc, argv, "Search for similar sequences by a master and workers.", sizes);
    const int64_t letters = size.x << 20, total = letters * size.y;
    struct worker *workers = allocate((size_t)size.y * sizeof *workers);
    for (long n = 0; n < size.y; n++)
        workers[n] = begin(n, letters);

    bool good = true;
    uint64_t d = DIGEST_START;
    for (long step = 0; step < size.steps; step++) {
        unsigned char query[LETTERS];
        const int64_t from = origin(step, total);
        for (int j = 0; j < LETTERS; j++)
            query[j] = j % CHANGED == CHANGED / 2 ? (letter(from + j) + 1) & 3 : letter(from + j);
        struct hit best = {0, -1};
        for (long n = 0; n < size.y; n++)
            good = whole(write(workers[n].queries, query, sizeof query), sizeof query, "write") && good;
        for (long n = 0; n < size.y; n++) {
            struct hit hit = {0, -1};
            good = whole(read(workers[n].hits, &hit, sizeof hit), sizeof hit, "read") && good;
            if (hit.score > best.score)
                best = hit;
        }
        /* One that lies across two fragments is found in part. */
        const bool across = from / letters != (from + LETTERS - 1) / letters;
        good = good && (across || llabs(best.position - from) < CHANGED);
        d = digest(d, &best, sizeof best);
        step_done(step + 1, size.steps, "score", (double)best.score);
    }

    /* Each worker has the ends of those before it, too: they end one after the other, the last one first. */
    for (long n = 0; n < size.y; n++)
        close(workers[n].queries);
    for (long n = 0; n < size.y; n++) {
        int status = 0;
        good = waitpid(workers[n].pid, &status, 0) == workers[n].pid && status == 0 && good;
    }
    return conclude(d, good);
}
