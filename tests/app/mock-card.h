/* mock-card.h: the mock device as the card of the real application: the linker hands the engine's making to mock-card.c
 * (-Wl,--wrap=qe_engine_new). Test only. */
#pragma once
#include "engine/qe-engine.h"
#include "kernels/qk-mock.h"

/* @options, with memory as small as a test's card has. */
static inline qe_engine_options mock_card_options(const qe_engine_options *options)
{
    qe_engine_options o = *options;

    o.host_bytes_max = 64 << 20;
    o.ring_bytes = 1 << 20;
    o.memory_reserve = 1;
    o.kv_bytes_max = 32 << 20;
    return o;
}

/* Main thread. Whether the next engine gets the mock. */
extern gboolean mock_card_use;
/* While held the card is not there yet: a load takes its time. */
void mock_card_hold(gboolean hold);
/* The one opened last, borrowed: its engine's; and how often one was. */
extern qk_backend *mock_card_last;
extern guint mock_card_n_opened;
