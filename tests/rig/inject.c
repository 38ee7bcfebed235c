/* inject: runs a program and lets one of its system calls fail, or kills or stops it there.
 *
 *     inject NUMBER FAULT WORD PROGRAM ARGUMENTS...
 *
 * Counted are the calls, of all threads, that concern a file whose path holds WORD. The one with
 * this NUMBER, from 1 on, is not made: it gives the error FAULT (EIO, ENOSPC, EINTR), or the
 * program gets the signal FAULT (KILL, STOP) instead. Which call it is goes to stderr. Exit code:
 * the program's; 128 + a signal's; 99 if there are fewer calls; 98 if it cannot be done. It needs
 * Linux on x86-64 or 64-bit ARM.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined __x86_64__ || defined __aarch64__

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

/* Calls that concern files: which argument is a descriptor, and which are paths; -1: none. */
static const struct file_call {
    const char *name;
    long number;
    int descriptor, path, second;
} file_calls[] = {
#define CALL(name, ...)                \
    {                                  \
#name, SYS_##name, __VA_ARGS__ \
    }
    CALL(openat, 0, 1, -1),     CALL(read, 0, -1, -1),       CALL(write, 0, -1, -1),
    CALL(pread64, 0, -1, -1),   CALL(pwrite64, 0, -1, -1),   CALL(readv, 0, -1, -1),
    CALL(writev, 0, -1, -1),    CALL(close, 0, -1, -1),      CALL(fstat, 0, -1, -1),
    CALL(newfstatat, 0, 1, -1), CALL(statx, 0, 1, -1),       CALL(faccessat, 0, 1, -1),
    CALL(faccessat2, 0, 1, -1), CALL(readlinkat, 0, 1, -1),  CALL(lseek, 0, -1, -1),
    CALL(fallocate, 0, -1, -1), CALL(ftruncate, 0, -1, -1),  CALL(truncate, -1, 0, -1),
    CALL(renameat2, 0, 1, 3),   CALL(unlinkat, 0, 1, -1),    CALL(mkdirat, 0, 1, -1),
    CALL(linkat, 0, 1, 3),      CALL(symlinkat, 1, 2, -1),   CALL(fsync, 0, -1, -1),
    CALL(fdatasync, 0, -1, -1), CALL(getdents64, 0, -1, -1), CALL(flock, 0, -1, -1),
    CALL(fcntl, 0, -1, -1),     CALL(ioctl, 0, -1, -1),      CALL(dup, 0, -1, -1),
    CALL(fchmod, 0, -1, -1),    CALL(fchmodat, 0, 1, -1),    CALL(utimensat, 0, 1, -1),
    CALL(statfs, -1, 0, -1),    CALL(fstatfs, 0, -1, -1),    CALL(mmap, 4, -1, -1),
#ifdef SYS_open
    CALL(open, -1, 0, -1),      CALL(creat, -1, 0, -1),      CALL(stat, -1, 0, -1),
    CALL(lstat, -1, 0, -1),     CALL(access, -1, 0, -1),     CALL(readlink, -1, 0, -1),
    CALL(rename, -1, 0, 1),     CALL(renameat, 0, 1, 3),     CALL(unlink, -1, 0, -1),
    CALL(mkdir, -1, 0, -1),     CALL(rmdir, -1, 0, -1),      CALL(link, -1, 0, 1),
    CALL(symlink, -1, 1, -1),   CALL(chmod, -1, 0, -1),
#endif
};

/* Does the text at this address of the process hold the word? */
static bool text_holds(pid_t thread, unsigned long long address, const char *word)
{
    char text[4096] = "", name[40];
    snprintf(name, sizeof name, "/proc/%d/mem", (int)thread);
    FILE *memory = fopen(name, "rb");
    if (memory && fseeko(memory, (off_t)address, SEEK_SET) == 0) {
        setbuf(memory, NULL);
        text[fread(text, 1, sizeof text - 1, memory)] = '\0';
    }
    if (memory)
        fclose(memory);
    return strstr(text, word) != NULL;
}

/* Does the path of this descriptor? */
static bool descriptor_holds(pid_t thread, int descriptor, const char *word)
{
    char name[60], path[4096];
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)thread, descriptor);
    ssize_t length = readlink(name, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return strstr(path, word) != NULL;
}

/* The call, if it is one that counts; else NULL. */
static const struct file_call *counted(pid_t thread, const struct __ptrace_syscall_info *info,
                                       const char *word)
{
    for (size_t i = 0; i < sizeof file_calls / sizeof *file_calls; i++) {
        const struct file_call *call = &file_calls[i];
        if ((long)info->entry.nr != call->number)
            continue;
        const __typeof__(info->entry.args[0]) *args = info->entry.args;
        bool holds =
            (call->path >= 0 && text_holds(thread, args[call->path], word)) ||
            (call->second >= 0 && text_holds(thread, args[call->second], word)) ||
            (call->descriptor >= 0 && descriptor_holds(thread, (int)args[call->descriptor], word));
        return holds ? call : NULL;
    }
    return NULL;
}

/* At the entry of a call: makes it one that does not exist. */
static void cancel(pid_t thread)
{
#ifdef __x86_64__
    ptrace(PTRACE_POKEUSER, thread, offsetof(struct user_regs_struct, orig_rax), -1L);
#else
    int none = -1;
    ptrace(PTRACE_SETREGSET, thread, NT_ARM_SYSTEM_CALL, &(struct iovec){&none, sizeof none});
#endif
}

/* At its exit: what it returns. */
static void give(pid_t thread, long value)
{
#ifdef __x86_64__
    ptrace(PTRACE_POKEUSER, thread, offsetof(struct user_regs_struct, rax), value);
#else
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, &all);
    registers.regs[0] = (unsigned long long)value;
    ptrace(PTRACE_SETREGSET, thread, NT_PRSTATUS, &all);
#endif
}

/* What happens at the call: an error, or a signal. */
static bool read_fault(const char *name, int *error, int *signal_number)
{
    static const struct {
        const char *name;
        int error, signal_number;
    } faults[] = {{"EIO", EIO, 0},
                  {"ENOSPC", ENOSPC, 0},
                  {"EINTR", EINTR, 0},
                  {"KILL", 0, SIGKILL},
                  {"STOP", 0, SIGSTOP}};
    for (int f = 0; f < 5; f++)
        if (strcmp(name, faults[f].name) == 0) {
            *error = faults[f].error;
            *signal_number = faults[f].signal_number;
            return true;
        }
    return false;
}

/* Starts a program that stops at each system call. Returns its id, or -1. */
static pid_t start(char **program)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        execvp(program[0], program);
        _exit(127);
    }
    bool traced = waitpid(child, &status, 0) == child && WIFSTOPPED(status) &&
                  ptrace(PTRACE_SETOPTIONS, child, NULL,
                         PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) == 0;
    if (traced && ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0)
        return child;
    int error = errno;
    kill(child, SIGKILL);
    errno = error;
    return -1;
}

int main(int argc, char **argv)
{
    int error, signal_number, status;
    if (argc < 5 || !read_fault(argv[2], &error, &signal_number)) {
        fprintf(stderr, "inject: see the head of tests/rig/inject.c\n");
        return 98;
    }
    long left = atol(argv[1]);
    pid_t child = start(argv + 4), failing = 0;
    if (child < 0) {
        perror("inject: ptrace");
        return 98;
    }
    for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (thread != child)
                continue;
            if (left > 0)
                return 99;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }

        /* Signals go on to the program, but for those that only tell us of a thread. */
        int passed = WSTOPSIG(status);
        if (passed == SIGTRAP || passed == SIGSTOP || passed == (SIGTRAP | 0x80))
            passed = 0;
        struct __ptrace_syscall_info info = {0};
        if (WSTOPSIG(status) == (SIGTRAP | 0x80))
            ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
        if (info.op == PTRACE_SYSCALL_INFO_EXIT && failing == thread) {
            give(thread, -error);
            failing = 0;
        } else if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
            const struct file_call *call = left > 0 ? counted(thread, &info, argv[3]) : NULL;
            left -= call != NULL;
            if (call && left == 0) {
                fprintf(stderr, "inject: %s at %s\n", argv[2], call->name);
                /* Who is not resumed stands still, with all threads at their next calls, and is
                 * killed with us. */
                while (signal_number == SIGSTOP)
                    pause();
                if (signal_number) {
                    kill(child, signal_number);
                } else {
                    cancel(thread);
                    failing = thread;
                }
            }
        }
        ptrace(PTRACE_SYSCALL, thread, NULL, passed);
    }
    return 98;
}

#else

int main(void)
{
    fprintf(stderr, "inject: not on this processor\n");
    return 98;
}

#endif
