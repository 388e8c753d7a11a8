/* Runs `burn` while the main thread is in the state that the argument names. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile double sink = 1;

__attribute__((noinline)) static void burn(void)
{
    for (int i = 0; i < 1000; i++)
        sink = sink * 0.999 + 1 / (sink * sink + 1);
}

static void *burn_forever(void *unused)
{
    for (;;)
        burn();
    return unused;
}

static void burn_in_handler(int signal)
{
    (void)signal;
    burn_forever(NULL);
}

static void *return_address;

static void save_return_address(int signal)
{
    (void)signal;
    return_address = __builtin_return_address(0);
}

/* Keeps a stale return address on the stack, in a slot that belonged to the signal handler's frame. */
static void burn_above_return_address(void)
{
    void *volatile slots[64] = {0};
    slots[8] = return_address;
    burn_forever((void *)slots[9]);
}

int main(int argc, char **argv)
{
    const char *state = argc > 1 ? argv[1] : "computes";
    pthread_t thread;
    if (strcmp(state, "computes") != 0 && strcmp(state, "handles") != 0 && strcmp(state, "handled") != 0)
        pthread_create(&thread, NULL, burn_forever, NULL);
    if (write(1, "ready\n", 6) != 6)
        return 1;
    if (strcmp(state, "joins") == 0)
        pthread_join(thread, NULL);
    while (strcmp(state, "sleeps") == 0)
        sleep(1000);
    while (strcmp(state, "allocates") == 0) {
        void *volatile memory = malloc(5000);
        free(memory);
    }
    if (strcmp(state, "handles") == 0) {
        signal(SIGUSR1, burn_in_handler);
        raise(SIGUSR1);
    }
    if (strcmp(state, "handled") == 0) {
        signal(SIGUSR1, save_return_address);
        raise(SIGUSR1);
        burn_above_return_address();
    }
    burn_forever(NULL);
}
