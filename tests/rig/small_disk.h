/* small_disk: a disk of 64 KiB, to be full. Who includes it defines _GNU_SOURCE first. */
#ifndef SMALL_DISK_H
#define SMALL_DISK_H

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* Writes a line into a file that exists. */
static inline bool small_disk_tell(const char *path, const char *line)
{
    int file = open(path, O_WRONLY);
    bool told = file >= 0 && write(file, line, strlen(line)) == (ssize_t)strlen(line);
    if (file >= 0)
        close(file);
    return told;
}

/* Mounts one on the folder at this path, for this process and its children only. False where the
 * system does not permit it. */
static inline bool small_disk_mount(const char *path)
{
    unsigned user = geteuid(), group = getegid();
    char users[40], groups[40];
    snprintf(users, sizeof users, "%u %u 1", user, user);
    snprintf(groups, sizeof groups, "%u %u 1", group, group);

    /* Who is not root may still be in a namespace of his own, where he must keep his number. */
    if (user == 0 ? unshare(CLONE_NEWNS) != 0
                  : unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
                        !small_disk_tell("/proc/self/setgroups", "deny") ||
                        !small_disk_tell("/proc/self/uid_map", users) ||
                        !small_disk_tell("/proc/self/gid_map", groups))
        return false;
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", path, "tmpfs", 0, "size=64k,mode=777") == 0;
}

#endif
