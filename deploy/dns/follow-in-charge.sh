#!/bin/sh
# Keep a DNS record at the bootstrap name of the site that is in charge (RFC 2136). See docs/apps/redirect.md.
# While it is not certain which one that is, the record stays as it is. Needs curl and nsupdate (bind9-dnsutils).
#
# Run one, as a service, beside a `kmirror serve`. From its environment:
#   SERVE    http://127.0.0.1:8080        address of `kmirror serve`
#   MIRROR   orders-dr
#   RECORD   kafka.example.com.           what clients have in bootstrap.servers
#   SITES    a=kafka-a.example.com. b=kafka-b.example.com.     clusters as in kmirror.toml, and a name for their brokers
#   TTL      5                            seconds
#   DNS      ns1.example.com 53           the zone's primary server
#   DNS_KEY  /etc/kmirror/dns.key         a TSIG key that may change RECORD, and nothing else
set -eu
: "$SERVE" "$MIRROR" "$RECORD" "$SITES" "$TTL" "$DNS" "$DNS_KEY"
last=
while :; do
    in_charge= number=0
    for site in $SITES; do
        if curl --silent --fail --max-time 2 --output /dev/null "$SERVE/in-charge/$MIRROR?cluster=${site%%=*}"; then
            in_charge=$site number=$((number + 1))
        fi
    done
    if [ "$number" -ne 1 ]; then
        last=
    elif [ "$in_charge" != "$last" ]; then
        if nsupdate -k "$DNS_KEY" -t 5 <<END; then
server $DNS
update delete $RECORD CNAME
update add $RECORD $TTL CNAME ${in_charge#*=}
send
END
            last=$in_charge
            echo "$RECORD is ${in_charge#*=}"
        fi
    fi
    sleep 1
done
