/* mpirun_end: loaded into mpirun, and only there, before its own libraries (LD_PRELOAD).
 *
 * At its end mpirun takes apart the server that its ranks have been connected with. Debian 12's (Open MPI
 * 4.1.4, PMIx 4.2.2) crashes there, or waits for ever, in 4 to 8 of 100 jobs whose ranks have ended at about
 * the same time and without MPI_Finalize: its exit code is not what the ranks asked for then. As the process
 * is about to end, the server may as well stay; and so must the code that its thread may still call.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

int PMIx_server_finalize(void);

int PMIx_server_finalize(void)
{
    Dl_info caller;
    if (dladdr(__builtin_return_address(0), &caller))
        dlopen(caller.dli_fname, RTLD_NOW | RTLD_NODELETE);
    return 0; /* PMIX_SUCCESS */
}

/* The ranks inherit mpirun's environment, and a sanitizer wants to be the first that is loaded. */
__attribute__((constructor)) static void leave_environment(void)
{
    unsetenv("LD_PRELOAD");
}
