# Four hosts on this machine, for bench/net.sh and bench/torch_net.sh, which read this file: network namespaces, each with a link of
# its own to one bridge, limited in both directions. Host i is "$(host i)", with the address $net.$((i + 1)). Needs root, ip and tc.

say_usage() { sed -n 's/^#   //p' "$0" | sed '1s/^/usage: /'; } # the lines that begin with three blanks, at the top of the script
wrong() { # argument [value]: ends the script
    if [ $# = 1 ]; then echo "$0: there is no argument '$1'; see $0 --help" >&2
    elif [ -z "$2" ]; then echo "$0: '$1' needs a value" >&2
    else echo "$0: '$1' cannot be '$2'; see $0 --help" >&2; fi
    exit 2
}

id=$(($$ % 10000))
net=10.77.$(($$ % 250))
allowed=$(sysctl -n net.ipv4.tcp_allowed_congestion_control 2>/dev/null || :)
host() { echo "gch$id-$1"; }

make_hosts() {
    ip link add "gcb$id" type bridge
    ip link set "gcb$id" up
    ip addr add $net.254/24 dev "gcb$id"
    case " $allowed " in # one that paces, as bbr does, would not be what most have
    *" cubic "*) ;;
    *) sysctl -qw "net.ipv4.tcp_allowed_congestion_control=$allowed cubic" ;;
    esac
    for i in 0 1 2 3; do
        ip netns add "$(host $i)"
        ip link add "gcv$id.$i" type veth peer name eth0 netns "$(host $i)"
        ip link set "gcv$id.$i" master "gcb$id" up
        ip -n "$(host $i)" addr add $net.$((i + 1))/24 dev eth0
        ip -n "$(host $i)" link set lo up
        ip -n "$(host $i)" link set eth0 up
        ip netns exec "$(host $i)" sysctl -qw net.ipv4.tcp_congestion_control=cubic
    done
}

stop_hosts() { # ends what runs on them
    for i in 0 1 2 3; do
        for pid in $(ip netns pids "$(host $i)" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || :; done
    done
}

remove_hosts() {
    for i in 0 1 2 3; do
        ip link del "gcv$id.$i" 2>/dev/null || : # and with it the other end
        ip netns del "$(host $i)" 2>/dev/null || :
    done
    ip link del "gcb$id" 2>/dev/null || :
    sysctl -qw "net.ipv4.tcp_allowed_congestion_control=$allowed"
}

limit() { # rate: what each host sends, and what it receives. The bucket holds what a delay of the scheduler lets pass.
    for i in 0 1 2 3; do
        if [ "$1" = none ]; then
            tc -n "$(host $i)" qdisc del dev eth0 root 2>/dev/null || :
            tc qdisc del dev "gcv$id.$i" root 2>/dev/null || :
            continue
        fi
        case $1 in
        *gbit) burst=256kb ;;
        *) burst=32kb ;;
        esac
        tc -n "$(host $i)" qdisc replace dev eth0 root tbf rate "$1" burst $burst latency 20ms
        tc qdisc replace dev "gcv$id.$i" root tbf rate "$1" burst $burst latency 20ms
    done
}
