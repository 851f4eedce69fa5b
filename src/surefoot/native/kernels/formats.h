/* Where things lie in a packed strip; the layout is told in formats.c. */
#ifndef SUREFOOT_FORMATS_H
#define SUREFOOT_FORMATS_H

#include "surefoot.h"

/* How many groups; shifts, since divisions by what the compiler doesn't know would tell in sf_decode. */
static inline int groups_of(const sf_format *format, int inputs) {
    return inputs >> __builtin_ctz(format->group);
}

static inline int padded_inputs(const sf_format *format, int inputs) {
    return (inputs + format->group - 1) & -format->group;
}

/* Inputs of one span of a strip. */
static inline int span_inputs(const sf_format *format, int inputs, int span) {
    int left = padded_inputs(format, inputs) - span * SPAN;
    return left < SPAN ? left : SPAN;
}

static inline int quant_bytes(const sf_format *format, int inputs) {
    return inputs * STRIP * format->bits / 8;
}

static inline int scale_bytes(const sf_format *format, int inputs) {
    int groups = groups_of(format, inputs);
    switch (format->scales) {
    case HALF_MIN: return groups * STRIP * 4;
    case K45: return STRIP * 4 + groups * STRIP * 2;
    case K6: return STRIP * 2 + groups * STRIP;
    default: return groups * STRIP * 2;
    }
}

static inline int whole_lines(int bytes) { return (bytes + LINE - 1) & -LINE; }

/* Bytes of a span of so many inputs, and of its strip; quants are whole lines as they are. */
static inline int span_bytes(const sf_format *format, int inputs) {
    return quant_bytes(format, inputs) + whole_lines(scale_bytes(format, inputs));
}

static inline int64_t strip_bytes(const sf_format *format, int inputs) {
    int padded = padded_inputs(format, inputs), rest = padded & (SPAN - 1);
    return (int64_t)(padded / SPAN) * span_bytes(format, SPAN) + (rest ? span_bytes(format, rest) : 0);
}

#endif
