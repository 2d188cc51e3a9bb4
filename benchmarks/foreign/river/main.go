// River, spoken to like the other programs of the benchmarks: one JSON command a line on standard input, one JSON
// answer a line on standard output. `serve URL FD` is a worker of latency probes: it writes each handler's start to FD.
// `share URL` is one of several workers that begin together: it says that it is ready, and how many jobs it has run.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	bulk       = 1_000  // jobs in one call of a bulk enqueue
	maxWorkers = 10_000 // goroutines, the most that River allows
	poll       = 50 * time.Millisecond
	cooldown   = time.Millisecond // between two fetches, the least that River allows
)

type NoopArgs struct{}

func (NoopArgs) Kind() string { return "noop" }

type ProbeArgs struct {
	Number int64 `json:"number"`
}

func (ProbeArgs) Kind() string { return "probe" }

type WorkArgs struct {
	Milliseconds float64 `json:"milliseconds"`
}

func (WorkArgs) Kind() string { return "work" }

type Handlers struct {
	done  func()
	probe func(int64)
}

type noopWorker struct {
	river.WorkerDefaults[NoopArgs]
	run func()
}

func (w *noopWorker) Work(context.Context, *river.Job[NoopArgs]) error { w.run(); return nil }

type workWorker struct {
	river.WorkerDefaults[WorkArgs]
	run func()
}

func (w *workWorker) Work(_ context.Context, job *river.Job[WorkArgs]) error {
	time.Sleep(time.Duration(job.Args.Milliseconds * float64(time.Millisecond)))
	w.run()
	return nil
}

type probeWorker struct {
	river.WorkerDefaults[ProbeArgs]
	run func(int64)
}

func (w *probeWorker) Work(_ context.Context, job *river.Job[ProbeArgs]) error {
	w.run(job.Args.Number)
	return nil
}

type Command struct {
	Verb    string `json:"verb"`
	Count   int    `json:"count"`
	Callers int    `json:"callers"`
	Number  int64  `json:"number"`

	Milliseconds float64 `json:"milliseconds"`
}

type Answer struct {
	Seconds float64 `json:"seconds"`
	Ran     int64   `json:"ran"`
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Args[2])
	if err != nil {
		return err
	}
	defer pool.Close()
	if os.Args[1] == "serve" {
		return serve(ctx, pool, os.Args[3])
	}
	if os.Args[1] == "share" {
		return share(ctx, pool)
	}
	producer, err := client(pool, nil)
	if err != nil {
		return err
	}
	answers := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var command Command
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			return err
		}
		answer, err := obey(ctx, pool, producer, command)
		if err != nil {
			return err
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

func client(pool *pgxpool.Pool, handlers *Handlers) (*river.Client[pgx.Tx], error) {
	config := &river.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if handlers != nil {
		config.Workers = river.NewWorkers()
		river.AddWorker(config.Workers, &noopWorker{run: handlers.done})
		river.AddWorker(config.Workers, &workWorker{run: handlers.done})
		river.AddWorker(config.Workers, &probeWorker{run: handlers.probe})
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots()}}
		config.FetchCooldown = cooldown
		config.FetchPollInterval = poll
	}
	return river.NewClient(riverpgxv5.New(pool), config)
}

// How many jobs at once, where the measurement gives all contestants the same number.
func slots() int {
	if given, err := strconv.Atoi(os.Getenv("BENCH_SLOTS")); err == nil {
		return given
	}
	return maxWorkers
}

func obey(ctx context.Context, pool *pgxpool.Pool, producer *river.Client[pgx.Tx], command Command) (Answer, error) {
	switch command.Verb {
	case "install":
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		if err != nil {
			return Answer{}, err
		}
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return Answer{}, err
	case "enqueue":
		return timed(func() error { return byCallers(ctx, producer, command.Count, command.Callers) })
	case "enqueue_bulk":
		return timed(func() error { return inBatches(ctx, producer, command.Count, NoopArgs{}) })
	case "enqueue_work":
		return timed(func() error {
			return inBatches(ctx, producer, command.Count, WorkArgs{command.Milliseconds})
		})
	case "probe":
		_, err := producer.Insert(ctx, ProbeArgs{command.Number}, nil)
		return Answer{}, err
	case "drain":
		return drain(ctx, pool, int64(command.Count))
	}
	return Answer{}, fmt.Errorf("unknown verb %q", command.Verb)
}

func timed(work func() error) (Answer, error) {
	begun := time.Now()
	err := work()
	return Answer{Seconds: time.Since(begun).Seconds()}, err
}

func byCallers(ctx context.Context, producer *river.Client[pgx.Tx], count, callers int) error {
	var left atomic.Int64
	left.Store(int64(count))
	var wait sync.WaitGroup
	failures := make(chan error, callers)
	for range callers {
		wait.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := producer.Insert(ctx, NoopArgs{}, nil); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	wait.Wait()
	close(failures)
	return <-failures
}

func inBatches(ctx context.Context, producer *river.Client[pgx.Tx], count int, args river.JobArgs) error {
	for left := count; left > 0; left -= bulk {
		batch := make([]river.InsertManyParams, min(bulk, left))
		for i := range batch {
			batch[i].Args = args
		}
		if _, err := producer.InsertManyFast(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

func drain(ctx context.Context, pool *pgxpool.Pool, count int64) (Answer, error) {
	var ran atomic.Int64
	finished := make(chan struct{})
	worker, err := client(pool, &Handlers{
		done: func() {
			if ran.Add(1) == count {
				close(finished)
			}
		},
		probe: func(int64) {},
	})
	if err != nil {
		return Answer{}, err
	}
	begun := time.Now()
	if err := worker.Start(ctx); err != nil {
		return Answer{}, err
	}
	<-finished
	seconds := time.Since(begun).Seconds()
	err = worker.Stop(ctx) // it settles what it has run; none may have run twice
	return Answer{Seconds: seconds, Ran: ran.Load()}, err
}

func share(ctx context.Context, pool *pgxpool.Pool) error {
	var ran atomic.Int64
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	lines.Scan()
	worker, err := client(pool, &Handlers{done: func() { ran.Add(1) }, probe: func(int64) {}})
	if err != nil {
		return err
	}
	if err := worker.Start(ctx); err != nil {
		return err
	}
	ended := make(chan bool)
	go func() { lines.Scan(); close(ended) }() // the input ends
	for told := int64(-1); ; {
		select {
		case <-ended:
			err := worker.Stop(ctx)
			fmt.Println(ran.Load())
			return err
		case <-time.After(10 * time.Millisecond):
			if now := ran.Load(); now != told {
				told = now
				fmt.Println(told)
			}
		}
	}
}

func serve(ctx context.Context, pool *pgxpool.Pool, descriptor string) error {
	number, err := strconv.Atoi(descriptor)
	if err != nil {
		return err
	}
	reports := os.NewFile(uintptr(number), "reports")
	worker, err := client(pool, &Handlers{done: func() {}, probe: func(probe int64) {
		report := binary.LittleEndian.AppendUint64(nil, uint64(probe))
		report = binary.LittleEndian.AppendUint64(report, uint64(time.Now().UnixNano()))
		_, _ = reports.Write(report)
	}})
	if err != nil {
		return err
	}
	if err := worker.Start(ctx); err != nil {
		return err
	}
	ending, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	<-ending.Done()
	return worker.Stop(ctx)
}
