// A process that the program itself takes off its card and brings back on another one; each step waits for a line.
//
// usage: capi_away SINK DIRECTORY
#include "coi.h"
#include <snapify.h>

static void await_line(const char *word)
{
    char line[16];
    puts(word);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    snapify_t s = {.m_snapshot_path = argv[2], .m_process = start(argv[1], 0)};
    await_line("there");
    CHECK(snapify_pause(&s) == SNAPIFY_SUCCESS);
    CHECK(snapify_capture(&s, true) == SNAPIFY_SUCCESS);
    CHECK(snapify_wait(&s) == SNAPIFY_SUCCESS);
    await_line("away");
    CHECK(snapify_restore(&s, 1) == SNAPIFY_SUCCESS);
    CHECK(snapify_resume(&s) == SNAPIFY_SUCCESS);
    await_line("back");
    CHECK(snapify_pause(&s) == SNAPIFY_SUCCESS);
    CHECK(snapify_capture(&s, true) == SNAPIFY_SUCCESS);
    CHECK(snapify_wait(&s) == SNAPIFY_SUCCESS);
    // By force: otherwise it would wait for the process to come back and end by itself.
    OK(COIProcessDestroy(s.m_process, 0, 1, NULL, NULL));
    await_line("gone");
    return 0;
}
