/* 12a_message: page 12a as a toy: how long a message takes over a cable, if it asks first, if TCP
 * may have no more than a window of bytes on the way, and if that window begins small.
 *
 * Usage: 12a-message [MBIT-A-SECOND MILLISECONDS]
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Bytes a second; seconds from one end of the cable to the other; bytes of the message. */
static double rate = 125e6, delay = 0.010;
static const double bytes = 4194304;

/* Seconds until the last byte has come. `window` bytes may leave before the first of them is
 * acknowledged, then twice as many, and so on up to `most`. */
static double message(bool asks, double window, double most)
{
    double left = bytes, now = asks ? 2 * delay : 0;

    /* A window that takes less time than a round trip leaves the cable idle for the rest of it. */
    while (left > window && window / rate < 2 * delay) {
        left -= window;
        now += 2 * delay;
        window = fmin(2 * window, most);
    }
    return now + left / rate + delay;
}

static void line(const char *name, bool asks, double window, double most)
{
    printf("%-48s%7.1f\n", name, 1e3 * message(asks, window, most));
}

int main(int count, char **word)
{
    if (count > 2) {
        rate = atof(word[1]) * 1e6 / 8;
        delay = atof(word[2]) / 1e3;
    }
    printf("%g Mb/s, a delay of %g ms; milliseconds:\n", rate * 8e-6, 1e3 * delay);
    line("at once", false, INFINITY, INFINITY);
    line("a window of 131,072 bytes", false, 131072, 131072);
    line("a window that begins with 90,000 and doubles", false, 90000, INFINITY);
    line("asks first", true, INFINITY, INFINITY);
    line("asks first; a window of 184,730", true, 184730, 184730);
    line("asks first; a window that begins with 90,000", true, 90000, INFINITY);
    return 0;
}
