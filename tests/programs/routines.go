// Goroutines that pass numbers on through channels.
package main

import "fmt"

func link(in <-chan int, out chan<- int) {
	for n := range in {
		out <- n*31%1000003 + 1
	}
	close(out)
}

func main() {
	first := make(chan int)
	in := first
	for i := 0; i < 50; i++ {
		out := make(chan int, i)
		go link(in, out)
		in = out
	}
	go func() {
		for n := 0; n < 250000; n++ {
			first <- n
		}
		close(first)
	}()
	sum := 0
	for n := range in {
		sum = (sum*17 + n) % 1000003
	}
	fmt.Println(sum)
}
