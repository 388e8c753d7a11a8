/* A library whose function calls back and may be unloaded during the callback. Used by sampled_odd.cpp. */
static volatile int done;

void through(void (*callback)(void))
{
    callback();
    done = 1;
}
