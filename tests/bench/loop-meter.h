/* loop-meter.h: what each iteration of the main loop takes, and the parts of each frame of a window.
 *
 * An iteration is what happens between two polls of the default main context: all sources that were ready, a frame of the
 * window among them. Its time is measured three ways, for a machine that does other things too: wall time, this thread's CPU
 * time, and how long the thread was ready to run while others had the CPUs (Linux's schedstat; 0 where there is none).
 * Main thread only; one meter at a time. */
#pragma once
#include <gtk/gtk.h>

typedef struct {
    double wall_ms, cpu_ms, wait_ms;
} MeterTime;

/* Thread CPU time, except where it says otherwise. */
typedef struct {
    MeterTime all;
    gboolean painted;
    double update_ms, layout_ms;   /* frame clock callbacks; measuring and allocating */
    double snapshot_ms, render_ms; /* making the window's render nodes; the renderer with them */
    guint progress;                /* what the caller's function gave at the end */
} MeterIteration;

typedef guint (*MeterProgress)(void);

MeterTime meter_now(void);
MeterTime meter_since(MeterTime begin);

/* Watches the frames of @window, a QuireWindow that is mapped. @progress may be NULL. */
void meter_begin(GtkWindow *window, MeterProgress progress);
/* (element-type MeterIteration): owned. */
GArray *meter_end(void);

/* The share @p of @n values is not above what this returns; sorts them. */
double meter_percentile(double *values, guint n, double p);
