// Threads that make much garbage.
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class Churn {
    static long work(int seed) {
        long sum = 0;
        for (int round = 0; round < 60; round++) {
            List<String> words = new ArrayList<>();
            for (int i = 0; i < 20000; i++) words.add(Integer.toString(i * seed + round));
            for (String word : words) sum = sum * 31 + word.hashCode();
        }
        return sum;
    }

    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> parts = new ArrayList<>();
        for (int n = 1; n <= 12; n++) {
            int seed = n;
            parts.add(pool.submit(() -> work(seed)));
        }
        long sum = 0;
        for (Future<Long> part : parts) sum = sum * 17 + part.get();
        pool.shutdown();
        System.out.println(sum);
    }
}
