// OpenMP target features of C++: global objects with constructors on each device, templates, lambdas, references, classes
// with mapped members. Needs no C++ library. Exit status: 0 if all is well, 1 otherwise.
#include <cstdio>
#include <cstdlib>
#include <omp.h>

static int failures;

static void report(const char *feature, bool ok) {
    std::printf("%-44s %s\n", feature, ok ? "ok" : "FAILED");
    failures += !ok;
}

#pragma omp declare target
struct Squares {
    long values[100];
    int made;
    Squares() : made(1) {
        for (long i = 0; i < 100; i++) values[i] = i * i;
    }
    // Runs on the device at the program's end.
    ~Squares() { made = 0; }
};
Squares squares;

template <typename T> struct Pair {
    T a, b;
    T sum() const { return a + b; }
};

template <typename T> T dot(const T *x, const T *y, long n) {
    T sum = 0;
    for (long i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}
#pragma omp end declare target

class Series {
public:
    explicit Series(long n) : n(n), values(static_cast<double *>(std::malloc(n * sizeof(double)))) {
        for (long i = 0; i < n; i++) values[i] = static_cast<double>(i);
        #pragma omp target enter data map(to : this[0 : 1])
        #pragma omp target enter data map(to : values[0 : this->n])
    }
    ~Series() {
        #pragma omp target exit data map(delete : values[0 : n])
        #pragma omp target exit data map(delete : this[0 : 1])
        std::free(values);
    }
    void scale(double factor) {
        #pragma omp target teams distribute parallel for
        for (long i = 0; i < n; i++) values[i] *= factor;
    }
    double last() {
        #pragma omp target update from(values[n - 1 : 1])
        return values[n - 1];
    }

private:
    long n;
    double *values;
};

template <typename F> static void on_device(F function) {
    #pragma omp target
    function();
}

int main() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (omp_get_num_devices() == 0) {
        std::fprintf(stderr, "omp_objects: there is no device\n");
        return 1;
    }
    bool ok = true;
    for (int device = 0; device < omp_get_num_devices(); device++) {
        long value = 0;
        int made = 0;
        #pragma omp target device(device) map(from : value, made)
        {
            value = squares.values[99];
            made = squares.made++;
        }
        ok = ok && value == 9801 && made == 1;
    }
    report("constructor of a global ran on every device", ok && squares.made == 1);

    Pair<double> pair = {1.5, 2.25};
    double sum = 0;
    #pragma omp target map(from : sum)
    sum = pair.sum();
    report("object with a template's method", sum == 3.75);

    long x[10], y[10], product = 0;
    for (long i = 0; i < 10; i++) x[i] = i, y[i] = 2 * i;
    #pragma omp target map(to : x, y) map(from : product)
    product = dot(x, y, 10);
    report("function template", product == 570);

    long total = 1;
    long &reference = total;
    #pragma omp target map(tofrom : reference)
    reference += 41;
    report("reference", total == 42);

    long *there = static_cast<long *>(omp_target_alloc(sizeof(long), omp_get_default_device()));
    long factor = 6, result = 0;
    on_device([=] { *there = 7 * factor; });
    omp_target_memcpy(&result, there, sizeof result, 0, 0, omp_get_initial_device(), omp_get_default_device());
    omp_target_free(there, omp_get_default_device());
    report("lambda", result == 42);

    Series series(1000);
    series.scale(3);
    series.scale(0.5);
    report("class that maps its own members", series.last() == 1498.5);

    std::printf(failures ? "%d FAILED\n" : "all features work\n", failures);
    return failures != 0;
}
