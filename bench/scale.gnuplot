# Draws build/scale.svg from build/scale.csv: "make scale" runs both.
set terminal svg size 1250,900 noenhanced font 'Helvetica,14' background rgb 'white'
set output 'build/scale.svg'
set datafile separator ','
set border 3 lc rgb '#666666'
set tics nomirror
set grid lc rgb '#dddddd' lt 1 lw 1
set logscale xy
set xrange [4:*]
set xtics (4, 16, 64, 256, '1,024' 1024, '4,096' 4096)
set xlabel 'workers'
set ylabel 'milliseconds'
colors = '#222222 #1f77b4 #d62728 #ff9f1c #8c564b #2ca02c #17becf #e377c2 #888888'
names = '"100 Mbit/s, latency 50 ms" "100 Mbit/s, 1 ms" "1 Gbit/s, 0.1 ms" "10 Gbit/s, 0.02 ms"'
stats 'build/scale.csv' using 2 nooutput
set multiplot layout 2,2 title "A step of 65,536 parameters: processor time, latencies and bytes of a worker"
do for [l=0:3] {
    set title word(names, l + 1)
    if (l == 3) { set yrange [0.01:100]; set key inside top left Left reverse samplen 2 font ',11' maxrows 5 } else { unset key }
    plot for [v=0:8] 'build/scale.csv' index v using 2:(1000*column(10+l)) with linespoints pt 7 ps 0.4 lw 2 lc rgb word(colors, v+1) \
        title (v == 0 ? 'none' : v == 1 ? 'eden' : v == 2 ? 'int:bits=4' : v == 3 ? 'topk+int:bits=4' : v == 4 ? 'the same, global=1' : \
               v == 5 ? 'powersgd:rank=4' : v == 6 ? 'int:bits=4, machines of 8' : v == 7 ? 'int:bits=4, each 20th step' : 'sign, two neighbours')
}
unset multiplot
