/* Says "ready"; then, for each line on standard input, a card says something and the host says something. Ends with its input. */
#include <stdio.h>

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int turn = 0;
    #pragma omp target map(tofrom : turn)
    turn++;
    printf("ready %d\n", turn);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        #pragma omp target map(tofrom : turn)
        printf("card says %d\n", ++turn);
        printf("host says %d\n", turn);
    }
    return 0;
}
