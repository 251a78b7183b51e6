// SPDX-License-Identifier: Apache-2.0
// Jobs in processes of their own: a crash, or an input that cannot be understood, ends one job
// only.
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define WORKERS_MAX 64

struct worker {
    pid_t pid;
    int pipe;
    u32 job;
    usize used, capacity;
    char *text;
};

static void start(struct worker *worker, u32 job, job_run *run, void *context) {
    int ends[2];
    fflush(NULL);
    if (pipe(ends) != 0) fail("no pipe");
    pid_t pid = fork();
    if (pid < 0) fail("no process");
    if (pid == 0) {
        close(ends[0]);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[1]);
        int code = run(context, job, stdout);
        fflush(NULL);
        _exit(code);
    }
    close(ends[1]);
    *worker = (struct worker){.pid = pid, .pipe = ends[0], .job = job};
}

// Reads what there is; returns false at the end, when the process has been waited for.
static bool receive(struct worker *worker, struct job_result *results) {
    if (worker->capacity - worker->used < 4096) {
        worker->capacity = MAX((usize)8192, 2 * worker->capacity);
        worker->text = need_more(worker->text, worker->capacity, 1);
    }
    ssize_t got =
        read(worker->pipe, worker->text + worker->used, worker->capacity - worker->used - 1);
    if (got > 0) {
        worker->used += (usize)got;
        return true;
    }
    worker->text[worker->used] = 0;
    close(worker->pipe);
    int status = 0;
    waitpid(worker->pid, &status, 0);
    results[worker->job].text = worker->text;
    results[worker->job].code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return false;
}

void jobs_run(u32 n, job_run *run, void *context, struct job_result *results) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    u32 limit = cpus < 1 ? 1 : (u32)MIN(cpus, WORKERS_MAX), next = 0, running = 0;
    struct worker workers[WORKERS_MAX];
    struct pollfd polls[WORKERS_MAX];
    while (next < n || running > 0) {
        while (running < limit && next < n) start(&workers[running++], next++, run, context);
        for (u32 i = 0; i < running; i++) {
            polls[i] = (struct pollfd){.fd = workers[i].pipe, .events = POLLIN};
        }
        if (poll(polls, running, -1) < 0) fail("poll");
        for (u32 i = running; i-- > 0;) {
            if (polls[i].revents == 0 || receive(&workers[i], results)) continue;
            workers[i] = workers[--running];
        }
    }
}
