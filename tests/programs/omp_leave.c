/* Uses a card once, says "ready", and exits with status 5 when its input ends, without another use of the card. */
#include <stdio.h>

int main(void) {
    int here = -1;
#pragma omp target map(from : here)
    here = 42;
    printf("ready %d\n", here);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 5;
}
