//! Programs of several processes, and programs that hold much of the kernel, survive rounds of checkpoint, kill and restart.

use snapify_tests::{Language, Meanwhile, Session, User, compile, survives};
use std::path::Path;
use std::process::{Command, Stdio};

const ROUNDS: usize = 2;

/// Puts a file of `programs/` into the session's directory.
fn put(session: &Session, name: &str) -> std::path::PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name);
    let copy = session.path(name);
    std::fs::copy(source, &copy).expect("copy a program");
    copy
}

/// A script for bash, at work in the session's directory.
fn script(session: &Session, text: &str) -> Command {
    let mut command = session.command("bash");
    command.arg("-c").arg(text).stdin(Stdio::null());
    command
}

#[test]
fn a_pipeline_of_the_shell() {
    survives(
        User::Ordinary,
        |session| {
            script(
                session,
                "seq 1 4000000 | sed s/7/11/ | awk '{ s += $1 } END { print s }' | cat",
            )
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}

#[test]
fn a_script_with_background_jobs() {
    survives(
        User::Ordinary,
        |session| {
            script(
                session,
                "sum() { s=0; for ((i = $1; i < $2; i++)); do ((s += i % 7)); done; echo $s >part.$1; }
                 for from in 0 100000 200000 300000; do sum $from $((from + 100000)) & done
                 wait; cat part.* | sort | tr '\\n' ' '",
            )
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}

#[test]
fn a_pool_of_python_processes() {
    survives(
        User::Ordinary,
        |session| {
            let mut command = session.command("/usr/bin/python3");
            command.arg(put(session, "pool.py")).stdin(Stdio::null());
            command
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}

#[test]
fn a_compiler_with_its_passes() {
    survives(
        User::Ordinary,
        |session| {
            let mut command = script(
                session,
                "for i in $(seq 1500); do
                     echo \"int f$i(int x) { int s = $i; for (int i = 0; i < x % 9; i++) s = s * $((i * 2 + 3)) + (x >> i % 5); return s; }\"
                 done >large.c
                 echo '#include <stdio.h>' >>large.c
                 echo 'int main(void) { unsigned s = 1;' >>large.c
                 for i in $(seq 1500); do echo \"s = s * 31 + (unsigned)f$i((int)(s % 1000));\"; done >>large.c
                 echo 'printf(\"%u\\n\", s); }' >>large.c
                 gcc -O1 -o large large.c && ./large",
            );
            command.env("TMPDIR", session.dir());
            command
        },
        ROUNDS,
        Meanwhile::Nothing,
    );
}

/// Meanwhile the shell's own standard output is not among its standard streams.
#[test]
fn a_shell_that_redirects_its_own_output() {
    survives(
        User::Ordinary,
        |session| {
            script(
                session,
                "{ i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done; echo $i; } >file
                 cat file; echo all",
            )
        },
        ROUNDS,
        Meanwhile::Nothing,
    );
}

#[test]
fn make_compiles_in_parallel() {
    survives(
        User::Ordinary,
        |session| {
            script(
                session,
                "rm -rf build && mkdir build && cd build
                 for i in $(seq 24); do
                     printf '#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\n#include <math.h>\\nint f%d(int x) { return x * %d; }\\n' $i $i >f$i.c
                 done
                 printf 'all: p\\np: %s\\n\\tcc -o $@ main.c $^\\n' \"$(for i in $(seq 24); do printf 'f%d.o ' $i; done)\" >Makefile
                 { for i in $(seq 24); do echo \"int f$i(int);\"; done
                   echo '#include <stdio.h>'
                   echo 'int main(void) { int s = 0;'
                   for i in $(seq 24); do echo \"s += f$i(s + 1);\"; done
                   echo 'printf(\"%d\\n\", s); }'; } >main.c
                 make -s -j4 CFLAGS='-O2 -g' && ./p",
            )
        },
        ROUNDS,
        Meanwhile::Nothing,
    );
}

#[test]
fn a_database_in_a_transaction() {
    survives(
        User::Ordinary,
        |session| {
            script(
                session,
                "rm -f data.db*; sqlite3 data.db \"
                     create table t (n integer primary key, h text);
                     begin;
                     with recursive c(n) as (select 1 union all select n + 1 from c where n < 400000)
                     insert into t select n, hex(n * 7919) from c;
                     commit;
                     select count(*), sum(length(h)), max(h) from t;\"",
            )
        },
        ROUNDS,
        Meanwhile::Nothing,
    );
}

#[test]
fn a_virtual_machine_with_a_garbage_collector() {
    survives(
        User::Ordinary,
        |session| {
            let mut command = session.command("java");
            command.arg(put(session, "Churn.java")).stdin(Stdio::null());
            command
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}

#[test]
fn an_event_loop_with_a_just_in_time_compiler() {
    survives(
        User::Ordinary,
        |session| {
            let mut command = session.command("node");
            command.arg(put(session, "loop.js")).stdin(Stdio::null());
            command
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}

#[test]
fn goroutines() {
    survives(
        User::Ordinary,
        |session| {
            let program = session.path("routines");
            if !program.exists() {
                let built = Command::new("go")
                    .args(["build", "-o"])
                    .arg(&program)
                    .arg(put(session, "routines.go"))
                    .env("GO111MODULE", "off")
                    .env("GOFLAGS", "")
                    .env("HOME", session.path(""))
                    .status()
                    .expect("run go");
                assert!(built.success(), "go build");
            }
            let mut command = session.command(&program);
            command.stdin(Stdio::null());
            command
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}

#[test]
fn a_server_with_its_client() {
    survives(
        User::Ordinary,
        |session| {
            script(
                session,
                "port=$((20000 + $$ % 12000))
                 redis-server --port $port --bind 127.0.0.1 --save '' --daemonize no >server.log &
                 server=$!
                 until redis-cli -p $port ping >/dev/null 2>&1; do kill -0 $server || exit 1; done
                 seq 1 100000 | sed 's/^/incrby sum /' | redis-cli -p $port >answers || exit 1
                 sum=$(redis-cli -p $port get sum)
                 redis-cli -p $port shutdown nosave
                 wait $server
                 wc -l <answers
                 echo $sum",
            )
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}

/// Its session directory below `/tmp` and its shared memory go away with the job that goes on, and come back.
#[test]
fn a_job_of_mpi_on_one_node() {
    survives(
        User::Ordinary,
        |session| {
            let program = session.path("mpi_ring");
            if !program.exists() {
                std::fs::copy(compile("mpi_ring.c", Language::Mpi), &program)
                    .expect("copy a program");
            }
            let mut command = session.command("mpirun");
            command
                .args(["-n", "4", "--oversubscribe"])
                .arg(&program)
                .arg("12000");
            command
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}
