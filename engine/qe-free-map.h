/* qe-free-map.h: a set of small integers with a fast lowest member: a tree of 64-bit words, six levels at most. Internal.
 * Level 0 has a bit for each member; a bit of level l + 1 says that the word below has any. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define QE_FREE_MAP_LEVELS 6 /* 64^6 > 2^32 */

typedef struct {
    uint64_t *levels[QE_FREE_MAP_LEVELS];
    uint32_t n_levels, n_bits;
} qe_free_map; /* zeroed: empty, with room for nothing */

/* Room for the integers below @n_bits (and some more, so that growing by little stays cheap). */
void qe_free_map_resize(qe_free_map *map, uint32_t n_bits);
void qe_free_map_free(qe_free_map *map);
void qe_free_map_clear(qe_free_map *map); /* removes all */
void qe_free_map_add(qe_free_map *map, uint32_t bit);
void qe_free_map_remove(qe_free_map *map, uint32_t bit);
bool qe_free_map_has(const qe_free_map *map, uint32_t bit);
uint32_t qe_free_map_lowest(const qe_free_map *map); /* UINT32_MAX: none */
uint32_t qe_free_map_count(const qe_free_map *map);
