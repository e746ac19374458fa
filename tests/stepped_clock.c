/* A clock that a test sets while processes run: LD_PRELOAD it, and name a file of eight bytes in STEPPED_CLOCK_FILE.
 *
 * The file holds nanoseconds, signed, in the machine's order: so far is the time of day ahead. It is mapped, so a step is seen at
 * once. Clocks that nobody sets (monotonic, boot) and sleeping stay as they are, as where a person sets the real clock.
 * Debian's libfaketime would do, but for its sleep, which fails in Python 3.11, and for what it leaves in /dev/shm.
 *
 * It includes no header, so that a compiler alone is enough to build it. Linux, 64 bits.
 */

#if defined(__x86_64__)
#define CLOCK_GETTIME 228
#elif defined(__aarch64__)
#define CLOCK_GETTIME 113
#else
#error "add the number of clock_gettime for this processor"
#endif

#define REALTIME 0
#define REALTIME_COARSE 5
#define SECOND 1000000000LL

struct spec { long seconds, nanoseconds; };
struct micro { long seconds, microseconds; };

extern long syscall(long, ...);
extern char *getenv(const char *);
extern int open(const char *, int, ...);
extern int close(int);
extern void *mmap(void *, unsigned long, int, int, int, long);

static volatile long long *ahead;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("STEPPED_CLOCK_FILE");
    int file = name ? open(name, 02000000 /* O_RDONLY | O_CLOEXEC */) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(0, 8, 1 /* PROT_READ */, 1 /* MAP_SHARED */, file, 0);
    close(file);
    if (mapped != (void *)-1)
        ahead = mapped;
}

int clock_gettime(int clock, struct spec *at)
{
    long result = syscall(CLOCK_GETTIME, clock, at);
    if (result == 0 && ahead && (clock == REALTIME || clock == REALTIME_COARSE)) {
        long long now = at->seconds * SECOND + at->nanoseconds + *ahead;
        at->seconds = now / SECOND;
        at->nanoseconds = now % SECOND;
    }
    return (int)result;
}

int gettimeofday(struct micro *at, void *zone)
{
    struct spec now;
    (void)zone;
    if (clock_gettime(REALTIME, &now) != 0)
        return -1;
    at->seconds = now.seconds;
    at->microseconds = now.nanoseconds / 1000;
    return 0;
}

long time(long *at)
{
    struct spec now;
    if (clock_gettime(REALTIME, &now) != 0)
        return -1;
    if (at)
        *at = now.seconds;
    return now.seconds;
}
