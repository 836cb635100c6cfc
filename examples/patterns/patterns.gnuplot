# Draws build/patterns.svg from the curves of build/outer, delayed, gossip and leader: "make patterns" runs both.
set terminal svg size 1250,1700 noenhanced font 'Helvetica,14' background rgb 'white'
set output 'build/patterns.svg'
set border 3 lc rgb '#666666'
set tics nomirror
set grid lc rgb '#dddddd' lt 1 lw 1
set yrange [0.3:1]
set logscale xy
set ytics (0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1)
programs = 'outer delayed gossip leader'
colors = '#222222 #888888 #d62728 #ff9f1c #1f77b4 #17becf #2ca02c #8c564b #9467bd #e377c2'
file(p) = sprintf('build/pattern-%s.dat', word(programs, p))
set multiplot title "Fashion-MNIST: training loss (mean of 25 steps) against rounds of communication, and against bytes that a worker sends"
high = 0.97 / words(programs)
do for [p=1:words(programs)] {
    stats file(p) using 1 nooutput
    rows = STATS_blocks
    set size 0.37, high
    set origin 0, 0.97 - p * high
    set title word(programs, p).'.c'
    set ylabel 'loss'
    set xlabel 'rounds'
    set xrange [1:700]
    set xtics ('1' 1, '10' 10, '100' 100, '600' 600)
    unset key
    plot for [i=0:rows-1] file(p) index i using 2:5 with lines lw 2 dt i/10+1 lc rgb word(colors, i%10+1) notitle
    set size 0.63, high
    set origin 0.37, 0.97 - p * high
    unset ylabel
    set title ' '
    set xlabel 'bytes'
    set xrange [1e4:5e8]
    set xtics ('10 kB' 1e4, '100 kB' 1e5, '1 MB' 1e6, '10 MB' 1e7, '100 MB' 1e8)
    set key outside right top Left reverse samplen 2 font ',12'
    plot for [i=0:rows-1] file(p) index i using 3:5 with lines lw 2 dt i/10+1 lc rgb word(colors, i%10+1) title columnheader(1)
}
unset multiplot
