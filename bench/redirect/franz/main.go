// Franz writes and reads numbered records with franz-go. It takes a properties file with the settings of a Java client,
// and prints the JSON lines that bench/redirect/numbered.py describes.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var printing sync.Mutex

func line(fields map[string]any) {
	fields["at"] = time.Now().UnixMilli()
	text, _ := json.Marshal(fields)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}

func failed(side string, err error) {
	line(map[string]any{"what": "error", "side": side, "text": err.Error()})
}

func settings(path string) map[string]string {
	file, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	found := map[string]string{}
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		// the escapes that a properties file needs, see properties_text
		key, value, _ := strings.Cut(scanner.Text(), "=")
		found[strings.ReplaceAll(key, `\`, "")] = strings.ReplaceAll(value, `\`, "")
	}
	return found
}

func connection(found map[string]string) []kgo.Opt {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(found["bootstrap.servers"], ",")...)}
	if strings.HasSuffix(found["security.protocol"], "SSL") {
		pem, err := os.ReadFile(found["ssl.truststore.location"])
		if err != nil {
			panic(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		anyName := found["ssl.endpoint.identification.algorithm"] == ""
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: pool, InsecureSkipVerify: anyName}))
	}
	if strings.HasPrefix(found["security.protocol"], "SASL") {
		login := regexp.MustCompile(`username="([^"]*)" password="([^"]*)"`).FindStringSubmatch(found["sasl.jaas.config"])
		options = append(options, kgo.SASL(scram.Auth{User: login[1], Pass: login[2]}.AsSha512Mechanism()))
	}
	return options
}

// writer has what outlives its client: the next number, and the refused ones.
type writer struct {
	topic            string
	partitions, rate int64
	next             int64
	again            chan int64
}

// write returns when the client has failed for good: it does not adopt a topic of the same name with another id.
func (w *writer) write(ended context.Context, found map[string]string) {
	line(map[string]any{"what": "started", "side": "writer", "text": ""})
	client, err := kgo.NewClient(append(connection(found), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	working, giveUp := context.WithCancel(ended)
	defer giveUp()
	ticks := time.NewTicker(time.Second / time.Duration(w.rate))
	defer ticks.Stop()
	for working.Err() == nil {
		number := w.next
		select {
		case number = <-w.again:
		default:
			w.next++
		}
		text := []byte(strconv.FormatInt(number, 10))
		record := &kgo.Record{Topic: w.topic, Partition: int32(number % w.partitions), Key: text, Value: text}
		client.TryProduce(ended, record, func(sent *kgo.Record, err error) {
			if err != nil {
				w.again <- number
				failed("writer", err)
				if errors.Is(err, kerr.UnknownTopicID) {
					giveUp()
				}
				return
			}
			fields := map[string]any{"what": "acknowledged", "number": number}
			fields["partition"], fields["offset"] = sent.Partition, sent.Offset
			line(fields)
		})
		<-ticks.C
	}
}

// read returns when the client has failed for good, as write does.
func read(ended context.Context, found map[string]string) {
	line(map[string]any{"what": "started", "side": "reader", "text": ""})
	own := []kgo.Opt{
		kgo.ConsumerGroup(found["numbered.group"]),
		kgo.ConsumeTopics(found["numbered.topic"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	}
	client, err := kgo.NewClient(append(connection(found), own...)...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	for ended.Err() == nil {
		fetches := client.PollFetches(ended)
		replaced := false
		fetches.EachError(func(_ string, _ int32, err error) {
			failed("reader", err)
			replaced = replaced || errors.Is(err, kerr.UnknownTopicID)
		})
		if replaced {
			return
		}
		fetches.EachRecord(func(record *kgo.Record) {
			number, _ := strconv.ParseInt(string(record.Value), 10, 64)
			fields := map[string]any{"what": "read", "number": number}
			fields["partition"], fields["offset"] = record.Partition, record.Offset
			line(fields)
		})
		client.CommitOffsets(ended, client.UncommittedOffsets(), func(
			_ *kgo.Client, _ *kmsg.OffsetCommitRequest, _ *kmsg.OffsetCommitResponse, err error,
		) {
			if err != nil {
				failed("reader", err)
			}
		})
		if fetches.Err() != nil {
			time.Sleep(200 * time.Millisecond)
		}
	}
}

func repeat(ended context.Context, work func()) {
	for ended.Err() == nil {
		work()
		time.Sleep(time.Second)
	}
}

func main() {
	found := settings(os.Args[1])
	partitions, _ := strconv.ParseInt(found["numbered.partitions"], 10, 64)
	rate, _ := strconv.ParseInt(found["numbered.rate"], 10, 64)
	w := &writer{found["numbered.topic"], partitions, rate, 0, make(chan int64, 1_000_000)}
	ended, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	var both sync.WaitGroup
	both.Go(func() { repeat(ended, func() { w.write(ended, found) }) })
	both.Go(func() { repeat(ended, func() { read(ended, found) }) })
	both.Wait()
}
