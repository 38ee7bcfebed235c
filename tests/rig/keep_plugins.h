/* keep_plugins: for builds with the address sanitizer. Open MPI unloads its plugins in the end, and then
 * nothing tells memory that they never free from ours. So nothing is unloaded. */
int dlclose(void *handle);
__attribute__((weak)) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
