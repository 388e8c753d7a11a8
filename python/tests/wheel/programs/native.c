/* A program whose main thread stays where its argument says, while `burn` runs. */
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

static void *burns(void *unused)
{
    for (;;)
        burn();
    return unused;
}

static void handles(int signal)
{
    (void)signal;
    burns(NULL);
}

static void *return_address;

static void returns(int signal)
{
    (void)signal;
    return_address = __builtin_return_address(0);
}

/* As in a local that is never written, where a handler had its frame. */
static void burns_above_a_return_address(void)
{
    void *volatile words[64] = {0};
    words[8] = return_address;
    burns((void *)words[9]);
}

int main(int count, char **words)
{
    const char *place = count > 1 ? words[1] : "computes";
    pthread_t thread;
    if (strcmp(place, "computes") != 0 && strcmp(place, "handles") != 0 && strcmp(place, "handled") != 0)
        pthread_create(&thread, NULL, burns, NULL);
    if (write(1, "ready\n", 6) != 6)
        return 1;
    if (strcmp(place, "joins") == 0)
        pthread_join(thread, NULL);
    while (strcmp(place, "sleeps") == 0)
        sleep(1000);
    while (strcmp(place, "allocates") == 0) {
        void *volatile memory = malloc(5000);
        free(memory);
    }
    if (strcmp(place, "handles") == 0) {
        signal(SIGUSR1, handles);
        raise(SIGUSR1);
    }
    if (strcmp(place, "handled") == 0) {
        signal(SIGUSR1, returns);
        raise(SIGUSR1);
        burns_above_a_return_address();
    }
    burns(NULL);
}
