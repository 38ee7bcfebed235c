/* halves: float32 of stdin to float16 of stdout, by ra_number. See halves.py. */
#include "ra_number.h"
#include <stdio.h>

int main(void)
{
    float number;
    uint16_t half;
    while (fread(&number, sizeof number, 1, stdin) == 1) {
        ra_number_store(RA_FLOAT16, 1, &number, &half);
        fwrite(&half, sizeof half, 1, stdout);
    }
}
