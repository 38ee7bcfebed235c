/* mpi_rig: loaded into mpirun and into its ranks, before their own libraries (LD_PRELOAD), so that jobs of
 * tests end well and begin quickly.
 *
 * Open MPI 4.1.4 with PMIx 4.2.2, as Debian 12 has them, cannot end well while a thread of theirs still runs:
 *
 * - mpirun takes apart the server that its ranks have been connected with. In 4 to 8 of 100 jobs whose ranks
 *   have ended at about the same time and without MPI_Finalize it crashes there, or waits for ever: its exit
 *   code is not what the ranks asked for then. As the process is about to end, the server may as well stay.
 * - Both unload plugins, and then the thread calls a function of one that is gone: a rank in some
 *   thousands crashes in MPI_Finalize. So nothing is unloaded.
 *
 * At their beginning mpirun and every rank ask for the machine's PCI devices, which nobody needs here. In a
 * virtual machine each answer is a way out of it and back: a third of what a job of four ranks costs.
 */
#include <stdlib.h>
#include <string.h>

#include "keep_plugins.h"

int PMIx_server_finalize(void);
int hwloc_topology_set_io_types_filter(void *topology, int filter);

int PMIx_server_finalize(void)
{
    return 0; /* PMIX_SUCCESS */
}

/* Unless hwloc is told which devices to look for, it looks for none. */
int hwloc_topology_set_io_types_filter(void *topology, int filter)
{
    (void)topology, (void)filter;
    return 0;
}

/* The ranks inherit mpirun's environment, and gcc's sanitizer wants to be the first that is loaded. */
__attribute__((constructor)) static void leave_sanitizers_alone(int count, char **words)
{
    for (int i = 0; i < count; i++)
        if (strstr(words[i], "asan/"))
            unsetenv("LD_PRELOAD");
}
