/* What a run of the engine told of its steps, read from the file that TRACE names; the model must follow it, step by
   step, to its end. One step a line, the ops numbered in the order of their links, from 0 on:

     link THREAD OP VARIABLE:MODE...   the push took effect; MODE: read, update, write, or wait (a read without a body)
     ready OP                          it goes into its lane's queue
     start OP | skip OP                a worker has it (a wait: who found it ready); it runs, or its body is skipped
     done OP | fail OP                 its body is over, and threw or not

   Variables and threads are numbers from 0 on. Lines that begin with # say nothing. */

#define e_link 1
#define e_ready 2
#define e_start 3
#define e_skip 4
#define e_done 5
#define EVENTS 64

byte told_what[EVENTS], told_op[EVENTS];
byte at, length;

c_decl {
  \#include <stdio.h>
  \#include <stdlib.h>
  \#include <string.h>
  static int furthest;
  static char lines[64][256];
  static int accepted;
}

c_code {
  static void bad(const char* why, const char* line) {
    printf("trace: unusable: %s: %s\n", why, line);
    exit(2);
  }
  static int small(const char* text, int limit, const char* line) {
    char* end;
    long n = text ? strtol(text, &end, 10) : -1;
    if (n < 0 || n >= limit || *end) bad("a number is missing or too large", line);
    return (int)n;
  }
  static void report(void) {
    if (!accepted) printf("trace: rejected, no way to step %d: %s\n", furthest + 1, lines[furthest]);
  }
  static void load(void) {
    static const char* const words[] = {"", "link", "ready", "start", "skip", "done", "fail"};
    static const char* const modes[] = {"", "read", "update", "write", "wait"};
    char line[256], copy[256];
    int ops = 0, i;
    FILE* file = getenv("TRACE") ? fopen(getenv("TRACE"), "r") : NULL;
    if (!file) bad("no such file", getenv("TRACE") ? getenv("TRACE") : "");
    for (i = 0; i < OPS; ++i) now.pusher[i] = 255;
    while (fgets(line, sizeof line, file)) {
      line[strcspn(line, "\n")] = 0;
      strcpy(copy, line);
      char* word = strtok(copy, " ");
      int what = 6, op;
      if (!word || *word == '#') continue;
      if (now.length == EVENTS) bad("too long", line);
      while (what > 0 && strcmp(word, words[what])) --what;
      if (what == 0) bad("no such step", line);
      const int thread = what == e_link ? small(strtok(NULL, " "), 3, line) : 0;
      op = small(strtok(NULL, " "), OPS, line);
      if (what == e_link) {
        char* access;
        if (op != ops++) bad("ops are numbered in the order of their links", line);
        now.pusher[op] = thread;
        while ((access = strtok(NULL, " "))) {
          char* mode = strchr(access, ':');
          int m = 4;
          if (!mode) bad("an access has no mode", line);
          *mode++ = 0;
          while (m > 0 && strcmp(mode, modes[m])) --m;
          if (m == 0) bad("no such mode", line);
          now.mode[op * VARS + small(access, VARS, line)] = m == 4 ? m_read : m;
          if (m == 4) now.waits[op] = 1;
        }
      }
      if (what == 6) {
        now.fails[op] = 1;
        what = e_done;
      }
      strcpy(lines[now.length], line);
      now.told_what[now.length] = what;
      now.told_op[now.length++] = op;
    }
    fclose(file);
    if (now.length == 0) bad("empty", "");
    atexit(report);
  }
  static void followed(void) {
    if (now.at > furthest) furthest = now.at;
    if (now.at == now.length) {
      printf("trace: accepted, %d steps\n", now.length);
      accepted = 1;
      exit(0);
    }
  }
}

#define EVENT(what, op) \
  skip; d_step { at < length && told_what[at] == what && told_op[at] == op -> at++; c_code { followed(); } }
