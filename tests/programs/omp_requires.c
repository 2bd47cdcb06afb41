/* Requires what a card cannot do: it must be told so, not run with wrong results. */
#include <stdio.h>

#pragma omp requires unified_shared_memory

int main(void) {
    int x = 0;
    #pragma omp target
    x = 1;
    printf("the target region ran, x is %d\n", x);
    return 0;
}
