/* A library that calls back, and may be unloaded meanwhile: see sampled_odd.cpp. */
static volatile int done;

void through(void (*callback)(void))
{
    callback();
    done = 1;
}
