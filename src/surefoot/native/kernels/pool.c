/* Threads that wait for each other by spinning for a moment and by sleeping after that.
 *
 * A pass has a few hundred steps of some microseconds; waking a sleeping thread costs more than such a step.
 * Between passes, and when another program has the processor, nothing spins for longer than SPINS.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "surefoot.h"

#define SPINS 20000 /* of some nanoseconds: about .1 to 1 ms */

struct sf_pool {
    int threads;
    pthread_t *worker;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int sleeping; /* under lock */
    uint8_t *room;
    int64_t room_bytes;
    _Atomic(sf_task) run;
    _Atomic(void *) context;
    atomic_int tasks;
    _Alignas(LINE) atomic_ullong job;    /* its number, and in the low half how many tasks nobody has taken */
    _Alignas(LINE) atomic_int unfinished; /* tasks */
    atomic_int closing;
};

typedef struct {
    sf_pool *pool;
    int thread;
} seat;

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static unsigned number_of(unsigned long long job) { return (unsigned)(job >> 32); }

/* Takes tasks of job `number` while there are any. A thread that comes late finds another number, or none
 * left; whoever takes a task knows that the job isn't over, so that what it read of it holds. */
static void work(sf_pool *pool, unsigned number, int thread) {
    unsigned long long job = atomic_load_explicit(&pool->job, memory_order_acquire);
    while (number_of(job) == number && (unsigned)job > 0) {
        sf_task run = atomic_load_explicit(&pool->run, memory_order_relaxed);
        void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
        int task = atomic_load_explicit(&pool->tasks, memory_order_relaxed) - (int)(unsigned)job;
        if (!atomic_compare_exchange_weak_explicit(&pool->job, &job, job - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        run(context, task, thread);
        atomic_fetch_sub_explicit(&pool->unfinished, 1, memory_order_release);
        job = atomic_load_explicit(&pool->job, memory_order_acquire);
    }
}

static unsigned job_number(sf_pool *pool) { return number_of(atomic_load_explicit(&pool->job, memory_order_acquire)); }

/* The number of the next job that isn't `seen`. */
static unsigned await_job(sf_pool *pool, unsigned seen) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (job_number(pool) != seen)
            return job_number(pool);
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    pool->sleeping++;
    while (job_number(pool) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pool->sleeping--;
    pthread_mutex_unlock(&pool->lock);
    return job_number(pool);
}

static void *worker_main(void *argument) {
    seat own = *(seat *)argument;
    free(argument);
    for (unsigned seen = 0;;) {
        seen = await_job(own.pool, seen);
        if (atomic_load(&own.pool->closing))
            return NULL;
        work(own.pool, seen, own.thread);
    }
}

/* Returns the number of the new job. */
static unsigned announce(sf_pool *pool, int tasks) {
    unsigned number = job_number(pool) + 1;
    atomic_store_explicit(&pool->job, (unsigned long long)number << 32 | (unsigned)tasks, memory_order_release);
    /* A worker about to sleep holds the lock until it waits, and looks at `job` before. */
    pthread_mutex_lock(&pool->lock);
    if (pool->sleeping)
        pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    return number;
}

/* Waits for the tasks that are being done, not for threads that haven't come: on a busy machine they may
 * take long. */
void sf_parallel(sf_pool *pool, sf_task run, void *context, int tasks) {
    if (tasks <= 1 || pool->threads == 1) {
        for (int task = 0; task < tasks; task++)
            run(context, task, 0);
        return;
    }
    atomic_store_explicit(&pool->run, run, memory_order_relaxed);
    atomic_store_explicit(&pool->context, context, memory_order_relaxed);
    atomic_store_explicit(&pool->tasks, tasks, memory_order_relaxed);
    atomic_store_explicit(&pool->unfinished, tasks, memory_order_relaxed);
    work(pool, announce(pool, tasks), 0);
    for (int spin = 0; atomic_load_explicit(&pool->unfinished, memory_order_acquire) > 0; spin++)
        if (spin < SPINS)
            pause_briefly();
        else
            sched_yield();
}

int sf_pool_threads(const sf_pool *pool) { return pool->threads; }

uint8_t *sf_pool_room(sf_pool *pool, int64_t bytes) {
    if (bytes > pool->room_bytes) {
        free(pool->room);
        pool->room = aligned_alloc(LINE, round_up(bytes, LINE));
        pool->room_bytes = pool->room ? bytes : 0;
    }
    return pool->room;
}

static void stop_workers(sf_pool *pool, int count) {
    atomic_store(&pool->closing, 1);
    announce(pool, 0);
    for (int i = 0; i < count; i++)
        pthread_join(pool->worker[i], NULL);
}

static int start_worker(sf_pool *pool, int index) {
    seat *own = malloc(sizeof *own);
    if (!own)
        return -1;
    *own = (seat){pool, index + 1};
    if (pthread_create(&pool->worker[index], NULL, worker_main, own) == 0)
        return 0;
    free(own);
    return -1;
}

sf_pool *sf_pool_new(int threads) {
    sf_pool *pool = aligned_alloc(LINE, round_up(sizeof *pool, LINE));
    pthread_t *worker = calloc(threads, sizeof *worker);
    if (!pool || !worker) {
        free(pool);
        free(worker);
        return NULL;
    }
    *pool = (sf_pool){.threads = threads, .worker = worker};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (int i = 0; i < threads - 1; i++)
        if (start_worker(pool, i) != 0) {
            pool->threads = i + 1;
            sf_pool_free(pool);
            return NULL;
        }
    return pool;
}

void sf_pool_free(sf_pool *pool) {
    stop_workers(pool, pool->threads - 1);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->room);
    free(pool->worker);
    free(pool);
}
