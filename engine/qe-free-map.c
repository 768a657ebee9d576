/* qe-free-map.c: see qe-free-map.h. A bit above level 0 is set exactly when the word below it is not 0. */
#include "engine/qe-free-map.h"
#include <string.h>

#define WORD_BITS 64u

static uint32_t n_words_of(uint32_t n_bits)
{
    return n_bits / WORD_BITS + (n_bits % WORD_BITS != 0);
}

void qe_free_map_resize(qe_free_map *map, uint32_t n_bits)
{
    if (n_bits <= map->n_bits)
        return;
    n_bits = (uint32_t)MIN((uint64_t)UINT32_MAX, MAX((uint64_t)n_bits, 2 * (uint64_t)map->n_bits));
    uint64_t *old = map->levels[0];
    uint32_t n_old = n_words_of(map->n_bits);
    for (uint32_t l = 1; l < map->n_levels; l++)
        g_free(map->levels[l]);
    map->n_levels = 0;
    map->n_bits = n_bits;
    do {
        g_assert(map->n_levels < QE_FREE_MAP_LEVELS);
        n_bits = n_words_of(n_bits);
        map->levels[map->n_levels++] = g_new0(uint64_t, n_bits);
    } while (n_bits > 1);
    if (old)
        memcpy(map->levels[0], old, n_old * sizeof *old);
    g_free(old);
    uint32_t n_words = n_words_of(map->n_bits);
    for (uint32_t l = 1; l < map->n_levels; l++) {
        for (uint32_t w = 0; w < n_words; w++) {
            if (map->levels[l - 1][w])
                map->levels[l][w / WORD_BITS] |= 1ull << (w % WORD_BITS);
        }
        n_words = n_words_of(n_words);
    }
}

void qe_free_map_free(qe_free_map *map)
{
    for (uint32_t l = 0; l < map->n_levels; l++)
        g_free(map->levels[l]);
    *map = (qe_free_map){0};
}

void qe_free_map_clear(qe_free_map *map)
{
    uint32_t n_bits = map->n_bits;
    for (uint32_t l = 0; l < map->n_levels; l++) {
        n_bits = n_words_of(n_bits);
        memset(map->levels[l], 0, n_bits * sizeof(uint64_t));
    }
}

bool qe_free_map_has(const qe_free_map *map, uint32_t bit)
{
    return bit < map->n_bits && ((map->levels[0][bit / WORD_BITS] >> (bit % WORD_BITS)) & 1);
}

void qe_free_map_add(qe_free_map *map, uint32_t bit)
{
    g_assert(bit < map->n_bits);
    for (uint32_t l = 0; l < map->n_levels; l++) {
        uint64_t *word = &map->levels[l][bit / WORD_BITS];
        bool was_empty = *word == 0;
        *word |= 1ull << (bit % WORD_BITS);
        if (!was_empty)
            break;
        bit /= WORD_BITS;
    }
}

void qe_free_map_remove(qe_free_map *map, uint32_t bit)
{
    g_assert(bit < map->n_bits);
    for (uint32_t l = 0; l < map->n_levels; l++) {
        uint64_t *word = &map->levels[l][bit / WORD_BITS];
        *word &= ~(1ull << (bit % WORD_BITS));
        if (*word != 0)
            break;
        bit /= WORD_BITS;
    }
}

uint32_t qe_free_map_lowest(const qe_free_map *map)
{
    uint32_t bit = 0;
    if (map->n_levels == 0 || map->levels[map->n_levels - 1][0] == 0)
        return UINT32_MAX;
    for (uint32_t l = map->n_levels; l-- > 0;)
        bit = bit * WORD_BITS + (uint32_t)__builtin_ctzll(map->levels[l][bit]);
    return bit;
}

uint32_t qe_free_map_count(const qe_free_map *map)
{
    uint32_t n = 0;
    for (uint32_t w = 0; map->n_levels && w < n_words_of(map->n_bits); w++)
        n += (uint32_t)__builtin_popcountll(map->levels[0][w]);
    return n;
}
