// Moves the kernel's own mappings (vDSO and its data) to the address in the first argument, and expects them to stay there.
// Afterwards the C library's pointers into them are wrong: nothing here may ask for the time.
#include "../../kinds/programs/check.h"

#define THIRD 0x100000000000UL

struct part {
    unsigned long start, end;
};

static int find(struct part *parts) {
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if ((strstr(line, "[vvar") || strstr(line, "[vdso]")) && count < 4) {
            EQUAL(sscanf(line, "%lx-%lx", &parts[count].start, &parts[count].end), 2);
            count++;
        }
    fclose(maps);
    return count;
}

static void move(struct part *parts, int count, unsigned long to) {
    unsigned long from = parts[0].start;
    for (int i = 0; i < count; i++) {
        unsigned long size = parts[i].end - parts[i].start, at = to + (parts[i].start - from);
        EXPECT(mremap((void *)parts[i].start, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == (void *)at);
        parts[i].start = at;
        parts[i].end = at + size;
    }
}

int main(int argc, char **argv) {
    struct part parts[4], now[4];
    int count = find(parts);
    EXPECT(argc == 2 && count >= 2);
    move(parts, count, THIRD);
    move(parts, count, strtoul(argv[1], 0, 16));
    pause_here();
    EQUAL(find(now), count);
    for (int i = 0; i < count; i++) {
        EQUAL(now[i].start, parts[i].start);
        EQUAL(now[i].end, parts[i].end);
    }
    EXPECT(!memcmp((void *)now[count - 1].start, "\177ELF", 4));
    return finish();
}
