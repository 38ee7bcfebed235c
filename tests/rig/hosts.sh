# hosts.sh: hosts where there is one machine, for scripts that measure rings between hosts: network namespaces
# $prefix-0, $prefix-1, ... with the addresses 10.77.0.1, 10.77.0.2, ... Wants root; a script that has sourced this
# puts cables between them, and removes them at its end.

# Names of this run's own, so that two runs do not meet; addresses are of the namespaces alone.
prefix=ra-$$

# wanted WHAT [NAME:COMMAND...]: ends the script, as skipped, unless this machine can have hosts.
wanted() {
    what=$1
    shift
    for need in 'root:[ "$(id -u)" -eq 0 ]' 'iproute2:ip netns list && tc qdisc show' 'unshare:command -v unshare' \
        'mpirun:command -v mpirun' "namespaces:ip netns add $prefix-probe && ip netns del $prefix-probe" "$@"; do
        eval "${need#*:}" >/dev/null 2>&1 && continue
        echo "skipped $what: no ${need%%:*}"
        finish skipped
    done
}

# TCP for a long line: it may begin with a window of 400 packets of 9,000 bytes, not 10; a pause does not
# end a window that has grown; buffers have room for it.
ready='initcwnd 400 initrwnd 400'
warm=net.ipv4.tcp_slow_start_after_idle=0
rmem='net.ipv4.tcp_rmem=4096 4194304 8388608' wmem='net.ipv4.tcp_wmem=4096 4194304 8388608'

# rules HOST SYSCTL=VALUE...: of its TCP; the same congestion control on every machine, and the plainest.
rules() {
    host=$1
    shift
    for rule in net.ipv4.tcp_congestion_control=reno "$@"; do
        ip netns exec "$host" sysctl -qw "$rule" || return 1
    done
}

# limit HOST DEVICE MBIT: the rate of what a device sends. Short packets, acknowledgements and answers, go before all
# others: the queue of a real card is short beside a message.
limit() {
    class="class add dev $2 parent"
    printf '%s\n' "qdisc add dev $2 root handle 1: htb default 3" \
        "$class 1: classid 1:1 htb rate $3mbit burst 18kb quantum 9014" \
        "$class 1:1 classid 1:2 htb rate $(($3 / 10))mbit ceil $3mbit burst 18kb quantum 9014 prio 0" \
        "$class 1:1 classid 1:3 htb rate $(($3 - $3 / 10))mbit ceil $3mbit burst 18kb quantum 9014 prio 1" \
        "filter add dev $2 parent 1: protocol ip u32 match u16 0 0xfc00 at 2 flowid 1:2" | tc -n "$1" -batch -
}

# What mpirun starts a program on another host with, instead of ssh: agent ADDRESS COMMAND...
cat >$work/agent <<HERE
#!/bin/sh
host=$prefix-\$((\${1##*.} - 1))
shift
exec ip netns exec \$host unshare --uts sh -c "hostname \$host; \$*"
HERE
chmod +x $work/agent

# on HOSTS ARGUMENTS...: mpirun, on the first host; hosts as --host takes them. Only TCP, inside a host, too.
on() {
    hosts=$1
    shift
    ip netns exec $prefix-0 unshare --uts sh -c "hostname $prefix-0; exec \"\$@\"" sh timeout -k 5 300 $mpirun \
        --mca plm_rsh_agent "$PWD/$work/agent" --mca oob_tcp_if_include 10.77.0.0/24 \
        --mca btl_tcp_if_include 10.77.0.0/24 --mca btl "${transports:-tcp,self}" --mca mpi_yield_when_idle 1 --host "$hosts" "$@"
}
