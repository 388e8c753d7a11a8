/* A program that ends in every possible way. While it is recorded, its exit status and output must not change. cc -O1
 * -pthread ends.c; ./ends SCENARIO */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t workers_barrier;

/* Uses CPU time without system calls, for a few samples. */
static void burn(double seconds) {
    struct timespec start, now;
    volatile double sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        for (int i = 0; i < 10000; i++) sum += i;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
}

/* Calls exit(2) by a system call instruction, without any libc function. */
static void exit_by_instruction(long status) {
#ifdef __x86_64__
    __asm__ volatile("syscall" : : "a"(SYS_exit), "D"(status) : "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = SYS_exit;
    register long status_argument __asm__("x0") = status;
    __asm__ volatile("svc 0" : : "r"(number), "r"(status_argument) : "memory");
#endif
}

/* Prints the thread that runs the handlers of exit(3), and whether SIGTERM is blocked there. */
static __thread const char *thread_name = "another thread";
static void print_thread_at_exit(void) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    printf("handlers in %s, SIGTERM %s\n", thread_name, sigismember(&blocked, SIGTERM) ? "blocked" : "open");
}

static void *work_and_return(void *seconds) {
    thread_name = "a worker";
    burn(*(double *)seconds);
    return NULL;
}

static void *return_together(void *seconds) {
    work_and_return(seconds);
    pthread_barrier_wait(&workers_barrier);
    return NULL;
}

static void *work_and_exit(void *seconds) {
    burn(*(double *)seconds);
    syscall(SYS_exit, 22);
    return NULL;
}

static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;
static int allocations;

static void *work_and_allocate(void *seconds) {
    burn(*(double *)seconds);
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_lock(&allocations_lock);
        char *memory = malloc(64 + i);
        memset(memory, 1, 64);
        free(memory);
        allocations++;
        pthread_mutex_unlock(&allocations_lock);
    }
    return NULL;
}

static void *call_pthread_exit(void *unused) {
    pthread_exit(unused);
}

static void start_thread(void *(*function)(void *), double *seconds) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, seconds) != 0) abort();
    pthread_detach(thread);
}

static void install_filter(struct sock_filter *instructions, unsigned short length) {
    struct sock_fprog program = {length, instructions};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}

#define ALLOWED(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int argc, char **argv) {
    const char *scenario = argc > 1 ? argv[1] : "";
    /* Static, because the main thread's stack may be gone before a worker reads these. */
    static double short_seconds = 0.05, long_seconds = 0.15;
    thread_name = "the main thread";
    atexit(print_thread_at_exit);
    setvbuf(stdout, NULL, _IONBF, 0);
    burn(short_seconds);
    if (!strcmp(scenario, "main")) {
        syscall(SYS_exit, 21);
    } else if (!strcmp(scenario, "main by an instruction")) {
        exit_by_instruction(21);
    } else if (!strcmp(scenario, "group")) {
        syscall(SYS_exit_group, 25);
    } else if (!strcmp(scenario, "main, then a worker")) {
        start_thread(work_and_exit, &long_seconds);
        syscall(SYS_exit, 21);
    } else if (!strcmp(scenario, "main, then a worker returns")) {
        start_thread(work_and_return, &long_seconds);
        syscall(SYS_exit, 21);
    } else if (!strcmp(scenario, "a worker, then main")) {
        start_thread(work_and_exit, &short_seconds);
        burn(0.3);
        syscall(SYS_exit, 21);
    } else if (!strcmp(scenario, "a worker, then main returns")) {
        start_thread(work_and_exit, &short_seconds);
        burn(0.3);
        return 26;
    } else if (!strcmp(scenario, "pthread_exit")) {
        pthread_exit(NULL);
    } else if (!strcmp(scenario, "pthread_exit, then a worker")) {
        start_thread(work_and_return, &long_seconds);
        pthread_exit(NULL);
    } else if (!strcmp(scenario, "pthread_exit, then a worker exits")) {
        start_thread(work_and_exit, &long_seconds);
        pthread_exit(NULL);
    } else if (!strcmp(scenario, "pthread_exit, then workers")) {
        pthread_barrier_init(&workers_barrier, NULL, 4);
        for (int number = 0; number < 4; number++) start_thread(return_together, &long_seconds);
        pthread_exit(NULL);
    } else if (!strcmp(scenario, "strict")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) abort();
        burn(long_seconds);
        syscall(SYS_exit, 23);
    } else if (!strcmp(scenario, "strict, killed")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) abort();
        burn(long_seconds);
        getppid();
    } else if (!strcmp(scenario, "strict, crashed")) {
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL)) abort();
        burn(long_seconds);
        *(volatile int *)16 = 1;
    } else if (!strcmp(scenario, "filter") || !strcmp(scenario, "filter, crashed")) {
        struct sock_filter filter_program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            ALLOWED(SYS_write),        ALLOWED(SYS_rt_sigprocmask),
            ALLOWED(SYS_exit_group),   ALLOWED(SYS_clock_gettime),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        };
        install_filter(filter_program, sizeof filter_program / sizeof *filter_program);
        burn(long_seconds);
        if (!strcmp(scenario, "filter, crashed")) *(volatile int *)16 = 1;
        return 24;
    } else if (!strcmp(scenario, "filter of threads")) {
        /* The seccomp filter kills only the calling thread; the process ends with its last thread. */
        struct sock_filter filter_program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        install_filter(filter_program, sizeof filter_program / sizeof *filter_program);
        getppid();
    } else if (!strcmp(scenario, "refusing filter")) {
        struct sock_filter filter_program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        install_filter(filter_program, sizeof filter_program / sizeof *filter_program);
        burn(long_seconds);
        return 27;
    } else if (!strcmp(scenario, "daemon")) {
        if (daemon(1, 1)) abort();
        burn(long_seconds);
        printf("a daemon\n");
        return 28;
    } else if (!strcmp(scenario, "vfork")) {
        pid_t child = vfork();
        int status = 0;
        if (child == 0) _exit(29);
        if (waitpid(child, &status, 0) != child) abort();
        return WEXITSTATUS(status);
    } else if (!strcmp(scenario, "exec")) {
        execlp("no such program", "no such program", (char *)NULL);
        char *arguments[] = {"sh", "-c", "exit 30", NULL};
        execv("/bin/sh", arguments);
    } else if (!strcmp(scenario, "abort")) {
        abort();
    } else if (!strcmp(scenario, "crash")) {
        *(volatile int *)16 = 1;
    } else if (!strcmp(scenario, "terminated")) {
        kill(getpid(), SIGTERM);
        pause();
    } else if (!strcmp(scenario, "no /proc")) {
        if (chroot("/usr/share")) abort();
        start_thread(work_and_exit, &long_seconds);
        exit_by_instruction(21);
    } else if (!strcmp(scenario, "no /proc, pthread_exit")) {
        /* Starts and joins a thread, which loads libgcc_s before the chroot: pthread_exit needs it. */
        pthread_t thread;
        if (pthread_create(&thread, NULL, call_pthread_exit, NULL) || pthread_join(thread, NULL)) abort();
        if (chroot("/usr/share")) abort();
        start_thread(work_and_return, &long_seconds);
        pthread_exit(NULL);
    }
    else if (!strcmp(scenario, "threads")) {
        pthread_t threads[3];
        for (int number = 0; number < 3; number++)
            if (pthread_create(threads + number, NULL, work_and_allocate, &long_seconds)) abort();
        for (int number = 0; number < 3; number++) pthread_join(threads[number], NULL);
        printf("%d allocations\n", allocations);
        return 32;
    } else if (!strcmp(scenario, "another user") || !strcmp(scenario, "another root")) {
        /* Forks a child that changes its user or its root directory before its first sample. */
        pid_t child = fork();
        int status = 0;
        if (child == 0) {
            if (!strcmp(scenario, "another user") ? setuid(65534) : chroot("/usr/share")) _exit(33);
            burn(long_seconds);
            _exit(34);
        }
        if (waitpid(child, &status, 0) != child) abort();
        return WEXITSTATUS(status);
    }
    return 31;
}
