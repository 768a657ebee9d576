/* loop-meter.c: see loop-meter.h. */
#include "tests/bench/loop-meter.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static GPollFunc poll_before;
static gboolean counting;
static MeterTime began;
static MeterIteration now;
static GArray *iterations;
static MeterProgress progress_of;
static GdkFrameClock *frame_clock;
static gulong handlers[3], update_hook;
static double mark_ms, snapshot_ms;
static GtkWidgetClass *window_class;
static void (*snapshot_before)(GtkWidget *widget, GtkSnapshot *snapshot);

static double clock_ms(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double cpu_ms(void)
{
    return clock_ms(CLOCK_THREAD_CPUTIME_ID);
}

/* Nanoseconds on a CPU, then ready without one. */
static double waited_ms(void)
{
    static int fd = -2;
    char text[96];
    ssize_t n;
    unsigned long long ran, waited;

    if (fd == -2)
        fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    n = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : -1;
    if (n <= 0)
        return 0;
    text[n] = '\0';
    return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? (double)waited / 1e6 : 0;
}

MeterTime meter_now(void)
{
    return (MeterTime){clock_ms(CLOCK_MONOTONIC), cpu_ms(), waited_ms()};
}

MeterTime meter_since(MeterTime begin)
{
    MeterTime end = meter_now();

    return (MeterTime){end.wall_ms - begin.wall_ms, end.cpu_ms - begin.cpu_ms, end.wait_ms - begin.wait_ms};
}

static gint poll_cb(GPollFD *fds, guint n_fds, gint timeout)
{
    gint rc;

    if (counting) {
        now.all = meter_since(began);
        now.progress = progress_of != NULL ? progress_of() : 0;
        g_array_append_val(iterations, now);
    }
    rc = poll_before(fds, n_fds, timeout);
    counting = TRUE;
    now = (MeterIteration){0};
    began = meter_now();
    return rc;
}

/* Handlers here are connected last, so that each marks the end of its phase. Tick callbacks connect as they come, so the end of
 * "update" is the beginning of "layout": what an emission hook sees. */
static void before_cb(void)
{
    mark_ms = cpu_ms();
    snapshot_ms = 0;
}

static double since_mark(void)
{
    double before = mark_ms;

    mark_ms = cpu_ms();
    return mark_ms - before;
}

static gboolean update_over_hook(
    GSignalInvocationHint *hint, guint n_params, const GValue *params, gpointer data)
{
    (void)hint, (void)n_params, (void)data;
    if (g_value_get_object(&params[0]) == frame_clock)
        now.update_ms += since_mark();
    return TRUE;
}

static void layout_cb(void)
{
    now.layout_ms += since_mark();
}

static void paint_cb(void)
{
    now.painted = TRUE;
    now.snapshot_ms += snapshot_ms;
    now.render_ms += since_mark() - snapshot_ms;
}

static void snapshot_window(GtkWidget *widget, GtkSnapshot *snapshot)
{
    double begin = cpu_ms();

    snapshot_before(widget, snapshot);
    snapshot_ms += cpu_ms() - begin;
}

void meter_begin(GtkWindow *window, MeterProgress progress)
{
    const struct {
        const char *signal;
        void (*callback)(void);
    } phases[] = {{"before-paint", before_cb}, {"layout", layout_cb}, {"paint", paint_cb}};

    g_assert(iterations == NULL);
    iterations = g_array_new(FALSE, TRUE, sizeof(MeterIteration));
    progress_of = progress;
    frame_clock = g_object_ref(gtk_widget_get_frame_clock(GTK_WIDGET(window)));
    for (gsize i = 0; i < G_N_ELEMENTS(phases); i++)
        handlers[i] =
            g_signal_connect_swapped(frame_clock, phases[i].signal, G_CALLBACK(phases[i].callback), NULL);
    update_hook = g_signal_add_emission_hook(
        g_signal_lookup("layout", GDK_TYPE_FRAME_CLOCK), 0, update_over_hook, NULL, NULL);
    window_class = g_type_class_ref(G_OBJECT_TYPE(window));
    snapshot_before = window_class->snapshot;
    window_class->snapshot = snapshot_window;
    counting = FALSE;
    poll_before = g_main_context_get_poll_func(NULL);
    g_main_context_set_poll_func(NULL, poll_cb);
}

GArray *meter_end(void)
{
    g_main_context_set_poll_func(NULL, poll_before);
    for (gsize i = 0; i < G_N_ELEMENTS(handlers); i++)
        g_clear_signal_handler(&handlers[i], frame_clock);
    g_signal_remove_emission_hook(g_signal_lookup("layout", GDK_TYPE_FRAME_CLOCK), update_hook);
    g_clear_object(&frame_clock);
    window_class->snapshot = snapshot_before;
    g_type_class_unref(window_class);
    return g_steal_pointer(&iterations);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double meter_percentile(double *values, guint n, double p)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, compare);
    return values[MIN((guint)ceil(p * n), n) - (p > 0 ? 1 : 0)];
}
