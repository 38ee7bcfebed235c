/* Chapter 08, Manners, exercise 4: what the caller has and the library knows; what it does not know
 * must be 0. */
static bool take(void *own, size_t size, const void *given)
{
    size_t has;
    memcpy(&has, given, sizeof has);
    if (has < LEAST)
        return false;
    for (size_t byte = size; byte < has; byte++)
        if (((const char *)given)[byte] != 0)
            return false;
    memcpy(own, given, has < size ? has : size);
    memcpy(own, &size, sizeof size);
    return true;
}
