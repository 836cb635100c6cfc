/* train_picture.h - the picture of train_methods.h: error against bits of every codec, drawn by
   gnuplot. The labels are placed here, because gnuplot would write them over each other. */

#ifndef TRAIN_PICTURE_H
#define TRAIN_PICTURE_H

#include "train_data.h" /* train_mix */
#include "train_methods.h"

#define TRAIN_WIDTH 1085.0 /* inside the axes, in pixels */
#define TRAIN_HEIGHT 680.0
#define TRAIN_LEFT 90.0
#define TRAIN_CROSSED 1500.0 /* how bad it is that a line or a label lies over a label */
#define TRAIN_ATTEMPTS 20 /* to place the labels, at most */
#define TRAIN_TOP 10.0 /* of the error axis; larger errors stand there, with their number */

/* Where everything is, in pixels from the lower left of the axes. A box is left, bottom, right,
   top. */
typedef struct train_picture {
    const train_points *points;
    double bits[2], error[2]; /* ends of the axes */
    double x[TRAIN_POINTS], y[TRAIN_POINTS];
    char label[TRAIN_POINTS][64];
    double box[TRAIN_POINTS][4], end[TRAIN_POINTS][2]; /* of the label; of the line to it */
    int right[TRAIN_POINTS]; /* 1: the label ends at its point instead of beginning there */
} train_picture;

static inline double train_along(double value, const double ends[2], double pixels)
{
    return pixels * log(value / ends[0]) / log(ends[1] / ends[0]);
}

static inline int train_overlap(const double *a, const double *b)
{
    return a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
}

/* Does the line from (x0, y0) to (x1, y1) cross the box? */
static inline int train_crosses(double x0, double y0, double x1, double y1, const double *box)
{
    const double d[2] = {x1 - x0, y1 - y0}, from[2] = {x0, y0};
    double begin = 0, end = 1; /* the part of the line that is inside */
    for (int k = 0; k < 2; k++) {
        double a, b;
        if (fabs(d[k]) < 1e-9) {
            if (from[k] <= box[k] || from[k] >= box[k + 2]) return 0;
            continue;
        }
        a = (box[k] - from[k]) / d[k];
        b = (box[k + 2] - from[k]) / d[k];
        begin = fmax(begin, fmin(a, b));
        end = fmin(end, fmax(a, b));
    }
    return begin < end;
}

/* Do the lines from points i and k to their labels cross? */
static inline int train_lines_cross(const train_picture *t, size_t i, double x, double y, size_t k)
{
    const double ax = x - t->x[i], ay = y - t->y[i], bx = t->end[k][0] - t->x[k], by = t->end[k][1] - t->y[k];
    const double turn = ax * by - ay * bx, dx = t->x[k] - t->x[i], dy = t->y[k] - t->y[i];
    const double a = (dx * by - dy * bx) / turn, b = (dx * ay - dy * ax) / turn;
    return fabs(turn) > 1e-9 && a > 0 && a < 1 && b > 0 && b < 1;
}

/* Where the curve 2^-bits is at x. */
static inline double train_curve(const train_picture *t, double x)
{
    return train_along(exp2(-t->bits[0] * pow(t->bits[1] / t->bits[0], x / TRAIN_WIDTH)), t->error, TRAIN_HEIGHT);
}

/* How bad is a label of point i with its near end at (x, y)? Fills its box. placed[k]: label k has
   a place. It does not look further once it is worse than `most`. */
static inline double train_badness(train_picture *t, size_t i, double x, double y, int right, const char *placed,
                                   double most)
{
    static const double key[4] = {0, 0, 490, 230}, arrow[4] = {160, 225, 330, 335};
    double width = 6.8 * (double)strlen(t->label[i]), bad = hypot(x - t->x[i], y - t->y[i]), *b = t->box[i];
    b[0] = right ? x - width - 3 : x - 3;
    b[1] = y - 9;
    b[2] = b[0] + width + 6;
    b[3] = y + 9;
    bad += 4 * TRAIN_CROSSED * (b[0] < 0) + 4 * TRAIN_CROSSED * (b[1] < 0) + 4 * TRAIN_CROSSED * (b[2] > TRAIN_WIDTH) +
        4 * TRAIN_CROSSED * (b[3] > TRAIN_HEIGHT) + 4 * TRAIN_CROSSED * train_overlap(b, key) + 4 * TRAIN_CROSSED * train_overlap(b, arrow);
    bad += 300.0 * (train_curve(t, b[0]) > b[1] && train_curve(t, b[2]) < b[3]);
    for (size_t k = 0; k < t->points->count && bad < most; k++) {
        const double point[4] = {t->x[k] - 6, t->y[k] - 6, t->x[k] + 6, t->y[k] + 6};
        bad += 200.0 * train_overlap(b, point);
        if (k == i) continue;
        bad += 60.0 * train_crosses(t->x[i], t->y[i], x, y, point);
        if (!placed[k]) continue;
        bad += TRAIN_CROSSED * train_overlap(b, t->box[k]) + TRAIN_CROSSED * train_crosses(t->x[i], t->y[i], x, y, t->box[k]) +
            TRAIN_CROSSED * train_crosses(t->x[k], t->y[k], t->end[k][0], t->end[k][1], b) +
            40.0 * train_lines_cross(t, i, x, y, k);
    }
    return bad;
}

/* Places a label at the best of many places around its point. Returns how bad that is. */
static inline double train_place_one(train_picture *t, size_t i, const char *placed)
{
    double least = 1e9, best[3] = {0, 0, 0};
    for (int k = 0; k < 24 * 34; k++) {
        double angle = 6.2831853 / 24 * (k % 24), radius = 10.0 + 14.0 * (k / 24), bad;
        double x = t->x[i] + radius * cos(angle), y = t->y[i] + radius * sin(angle);
        int right = cos(angle) < -1e-6;
        if (radius > least) break;
        bad = train_badness(t, i, x, y, right, placed, least);
        if (bad < least) {
            least = bad;
            best[0] = x;
            best[1] = y;
            best[2] = right;
        }
    }
    t->right[i] = best[2] > 0;
    t->end[i][0] = best[0];
    t->end[i][1] = best[1];
    train_badness(t, i, best[0], best[1], t->right[i], placed, 0);
    return least;
}

/* Places the labels in an order that depends on the seed, and then each again, now that the others are
   there. Returns how bad the worst one is. */
static inline double train_place_labels(train_picture *t, unsigned seed)
{
    const size_t count = t->points->count;
    size_t order[TRAIN_POINTS];
    char placed[TRAIN_POINTS] = {0};
    double worst = 0;
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t i = count; seed && i-- > 1;) {
        const size_t k = train_mix(seed * 1000u + i) % (i + 1), other = order[i];
        order[i] = order[k];
        order[k] = other;
    }
    for (int again = 0; again < 4; again++) {
        worst = 0;
        for (size_t i = 0; i < count; i++) {
            worst = fmax(worst, train_place_one(t, order[i], placed));
            placed[order[i]] = 1;
        }
    }
    return worst;
}

/* Finds the axes, the points and places for the labels. */
static inline void train_place(train_picture *t, const train_points *points)
{
    double least = 1e9;
    unsigned best = 0;
    t->points = points;
    t->bits[0] = 1e9;
    t->bits[1] = 32;
    t->error[0] = t->error[1] = TRAIN_TOP;
    for (size_t i = 0; i < points->count; i++) {
        const train_point *p = &points->at[i];
        t->bits[0] = p->bits * 0.7 < t->bits[0] ? p->bits * 0.7 : t->bits[0];
        t->error[0] = p->error * 0.6 < t->error[0] ? p->error * 0.6 : t->error[0];
    }
    for (size_t i = 0; i < points->count; i++) {
        const train_point *p = &points->at[i];
        int high = p->error > TRAIN_TOP;
        t->x[i] = train_along(p->bits, t->bits, TRAIN_WIDTH);
        t->y[i] = train_along(high ? TRAIN_TOP : p->error, t->error, TRAIN_HEIGHT);
        snprintf(t->label[i], sizeof t->label[i], high ? "%s (error %.0f)" : "%s", p->codec,
                 p->error);
    }
    for (unsigned seed = 0; seed < TRAIN_ATTEMPTS && least >= TRAIN_CROSSED; seed++) {
        const double worst = train_place_labels(t, seed);
        best = worst < least ? seed : best;
        least = fmin(least, worst);
    }
    if (least >= TRAIN_CROSSED) train_place_labels(t, best);
}

static inline void train_write_labels(const train_picture *t, FILE *file)
{
    for (size_t i = 0; i < t->points->count; i++) {
        double x = t->right[i] ? t->box[i][2] - 3 : t->box[i][0] + 3, y = (t->box[i][1] + t->box[i][3]) / 2;
        const char *color = train_families[t->points->at[i].family][1];
        fprintf(file, "set label '%s' at graph %.4f,%.4f %s tc rgb '%s' front boxed\n", t->label[i],
                x / TRAIN_WIDTH, y / TRAIN_HEIGHT, t->right[i] ? "right" : "left", color);
        if (hypot(x - t->x[i], y - t->y[i]) > 12)
            fprintf(file,
                    "set arrow from graph %.4f,%.4f to graph %.4f,%.4f nohead lc rgb '%s' lw 0.5\n",
                    t->x[i] / TRAIN_WIDTH, t->y[i] / TRAIN_HEIGHT, x / TRAIN_WIDTH,
                    y / TRAIN_HEIGHT, color);
    }
}

/* Writes methods.gnuplot, which holds all it needs, and draws methods.svg. Returns 0, or 1 after
   saying what is wrong. */
static inline int train_picture_draw(train_points *points, const char *what, size_t step,
                                     const char *out)
{
    char path[512];
    FILE *file = train_create(out, "methods.gnuplot", path, sizeof path);
    size_t families = sizeof train_families / sizeof *train_families;
    static train_picture t; /* large */
    const train_point *at[TRAIN_POINTS];
    const size_t best = train_frontier(points, at);
    if (!file) return 1;
    train_place(&t, points);
    fprintf(file,
            "set terminal svg size 1200,800 noenhanced font 'Helvetica,12' background "
            "rgb 'white'\n");
    fprintf(file, "set output '%s/methods.svg'\n$points << END\n", out);
    for (size_t i = 0; i < points->count; i++)
        fprintf(file, "%.5g %.5g %d %d\n", points->at[i].bits,
                points->at[i].error > TRAIN_TOP ? TRAIN_TOP : points->at[i].error,
                points->at[i].family, points->at[i].unbiased);
    fprintf(file, "END\n$frontier << END\n");
    for (size_t i = 0; i < best; i++)
        fprintf(file, "%.5g %.5g\n", at[i]->bits, at[i]->error > TRAIN_TOP ? TRAIN_TOP : at[i]->error);
    fprintf(file, "END\nset lmargin at screen %.5f\nset rmargin at screen %.5f\n",
            TRAIN_LEFT / 1200, (TRAIN_LEFT + TRAIN_WIDTH) / 1200);
    fprintf(file, "set bmargin at screen %.5f\nset tmargin at screen %.5f\n", 65 / 800.0,
            (65 + TRAIN_HEIGHT) / 800);
    fprintf(file,
            "set title '%s: one gradient of fc1.weight, %zu x %zu, of one worker at "
            "step %zu' font ',14'\n",
            what, points->rows, points->cols, step);
    fprintf(file,
            "set xlabel 'bits sent for an element'\n"
            "set ylabel 'relative error |p - C(p)| / |p|'\n");
    fprintf(file,
            "set border 3 lc rgb '#666666'\nset tics nomirror\n"
            "set grid lc rgb '#e4e4e4' lt 1 lw 1\n");
    fprintf(file,
            "set logscale xy\nset xrange [%.5g:%.5g]\nset yrange [%.5g:%.5g]\n"
            "set samples 500\n",
            t.bits[0], t.bits[1], t.error[0], t.error[1]);
    fprintf(file, "set xtics (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32)\n");
    fprintf(file,
            "set ytics (10, 5, 2, 1, '0.5' 0.5, '0.2' 0.2, '0.1' 0.1, '0.05' 0.05, '0.02' "
            "0.02, '0.01' 0.01, '0.005' 0.005, ");
    fprintf(file,
            "'0.002' 0.002, '0.001' 0.001, '0.0005' 0.0005, '0.0002' 0.0002, '0.0001' "
            "0.0001)\n");
    fprintf(file, "set key bottom left Left reverse spacing 1.3\n");
    fprintf(file, "set style textbox opaque fillcolor rgb 'white' noborder margins 0.1,0.1\n");
    fprintf(file, "set arrow from graph 0.29,0.47 to graph 0.21,0.37 filled lw 3 lc rgb '#666666'\n"
                  "set label 'better' at graph 0.265,0.40 left font ',16' tc rgb '#666666'\n");
    train_write_labels(&t, file);
    fprintf(file,
            "y(family, unbiased) = column(3) == family && column(4) == unbiased ? "
            "column(2) : NaN\n");
    fprintf(file,
            "plot 2**-x with lines lc rgb '#aaaaaa' dt 2 title '2^-bits: the least for "
            "independent normal numbers', \\\n"
            "    $frontier using 1:2 with lines lc rgb '#444444' lw 1.5 title 'frontier: the least "
            "error for these bits', \\\n");
    for (size_t f = 0; f < families; f++) {
        const char *color = train_families[f][1];
        fprintf(file,
                "    $points using 1:(y(%zu, 0)) with points pt 7 ps 0.8 lw 2 lc rgb '%s' "
                "title '%s', \\\n",
                f, color, train_families[f][0]);
        fprintf(file,
                "    $points using 1:(y(%zu, 1)) with points pt 6 ps 0.8 lw 2 lc rgb '%s' "
                "notitle, \\\n",
                f, color);
    }
    fprintf(file,
            "    NaN with points pt 6 ps 0.8 lw 2 lc rgb '#444444' title 'open: "
            "random, and right on average'\n");
    if (fclose(file) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    switch (train_gnuplot(path)) {
    case 0:
        printf("%s/methods.svg: error against bits of %zu codecs\n", out, points->count);
        return 0;
    case -1: return 0;
    default: return 1;
    }
}

#endif /* TRAIN_PICTURE_H */
