// A goroutine that waits for mail on a channel of its own: what one costs, beside the agents of benchmarks.footprint.
package main

import (
	"encoding/json"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func pss() float64 {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), "\nPss:")
	kb, _ := strconv.ParseFloat(strings.Fields(after)[0], 64)
	return kb * 1024
}

func cpu() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	boxes := make([]chan int, count)
	var ready, woken, ended sync.WaitGroup
	ready.Add(count)
	woken.Add(count)
	ended.Add(count)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	resident := pss()
	started, used := time.Now(), cpu()
	for i := range boxes {
		box := make(chan int)
		boxes[i] = box
		go func() {
			ready.Done()
			<-box
			woken.Done()
			<-box
			ended.Done()
		}()
	}
	ready.Wait()
	start, startCPU := time.Since(started).Seconds(), cpu()-used
	resident = pss() - resident
	runtime.GC()
	runtime.ReadMemStats(&after)
	started, used = time.Now(), cpu()
	for _, box := range boxes {
		box <- 1
	}
	woken.Wait()
	wake := time.Since(started).Seconds()
	n := float64(count)
	json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"count":          n,
		"resident_bytes": resident / n,
		"heap_bytes":     float64(after.HeapAlloc-before.HeapAlloc) / n,
		"stack_bytes":    float64(after.StackInuse-before.StackInuse) / n,
		"start_us":       start / n * 1e6,
		"start_cpu_us":   startCPU / n * 1e6,
		"wake_us":        wake / n * 1e6,
		"wake_cpu_us":    (cpu() - used) / n * 1e6,
	})
}
