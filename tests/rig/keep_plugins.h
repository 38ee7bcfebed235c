/* keep_plugins: a dlclose that unloads nothing. For builds with the address sanitizer: Open MPI
 * unloads its plugins in the end, and then nothing tells memory that they never free from ours. And
 * for mpi_rig.c. */
#ifndef KEEP_PLUGINS_H
#define KEEP_PLUGINS_H

int dlclose(void *handle);
__attribute__((weak)) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}

#endif
