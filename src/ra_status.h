/* ra_status: what came of a call, and the room for the text that says why.
 * Chapter 03. Installed with the library.
 */
#ifndef RA_STATUS_H
#define RA_STATUS_H

#ifdef __GNUC__
#define RA_CHECKED __attribute__((warn_unused_result))
#else
#define RA_CHECKED
#endif

enum ra_status {
    RA_OK,
    RA_INVALID,       /* an argument is wrong; nothing was done */
    RA_OUT_OF_MEMORY, /* the plan does not fit */
    RA_DISAGREEMENT,  /* the ranks were given different configs */
    RA_LOST,          /* a rank has failed, or a message did not come: the plan is at its end */
    RA_DEVICE,        /* CUDA has reported an error: the plan is at its end */
    RA_CANCELLED      /* ra_plan_cancel was called: the plan is at its end */
};

/* Room for the text of an error, its final 0 included. */
#define RA_ERROR_SIZE 320

#endif
