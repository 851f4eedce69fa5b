/* Where things lie in a packed strip; the layout is told in formats.c. */
#ifndef SUREFOOT_FORMATS_H
#define SUREFOOT_FORMATS_H

#include "surefoot.h"

static inline int padded_inputs(const sf_format *format, int inputs) {
    return (int)round_up(inputs, format->group);
}

/* Inputs of one span of a strip. */
static inline int span_inputs(const sf_format *format, int inputs, int span) {
    int left = padded_inputs(format, inputs) - span * SPAN;
    return left < SPAN ? left : SPAN;
}

static inline int quant_bytes(const sf_format *format, int inputs) { return inputs * STRIP * format->bits / 8; }

static inline int scale_bytes(const sf_format *format, int inputs) {
    int groups = inputs / format->group;
    switch (format->scales) {
    case HALF_MIN: return groups * STRIP * 4;
    case K45: return STRIP * 4 + groups * STRIP * 2;
    case K6: return STRIP * 2 + groups * STRIP;
    default: return groups * STRIP * 2;
    }
}

/* Bytes of a span of so many inputs. */
static inline int64_t span_bytes(const sf_format *format, int inputs) {
    return round_up(quant_bytes(format, inputs), LINE) + round_up(scale_bytes(format, inputs), LINE);
}

#endif
