/** A command that is run once whatever happens to connections, and told of truly. Its output is read as it comes,
 * the end of each stream is what is kept, and neither memory nor the network suffers from one that prints without end. */

import { randomUUID } from "node:crypto"
import { setTimeout as sleep } from "node:timers/promises"
import { BerthError, type Client, type Json, LostError, UnreachableError, now, place, times } from "./client.js"

/** Beyond a command's time: its grace of 2 s before KILL, the end of its output, a busy machine. */
const GRACE = 30_000
/** The service's own bounds for what is kept of an output, of which half is the end. */
const KEPT_MIN = 64 << 10
const KEPT_MAX = 2 ** 30
/** When so much was printed, the output is followed no more, and its end is fetched afterwards. */
const FLOOD = 8 << 20
/** An offset that no output reaches: who follows from there is told of the end alone. */
const NOWHERE = String(2 ** 52)
const streams = ["stdout", "stderr"] as const
type Stream = (typeof streams)[number]

export interface Run {
  argv: string[]
  env?: Record<string, string> | undefined
  cwd?: string | undefined
  stdin?: Uint8Array | undefined
  /** Milliseconds; undefined: none. */
  timeout?: number | undefined
  outputMax: number
  mountPath: string
}

export interface Outcome {
  verdict: Json
  kind: string
  exitStatus: number
  stdout: Buffer
  stderr: Buffer
  truncated: Record<Stream, boolean>
  /** Where it saw the workspace; undefined: that was not told. */
  path: string | undefined
  duration: number
}

/** The last bytes of a stream. */
class Tail {
  private parts: Buffer[] = []
  private kept = 0
  offset = 0

  constructor(private readonly limit: number) {}

  add(offset: number, data: Buffer): void {
    if (offset > this.offset) {
      this.parts = [] // the middle was not kept
      this.kept = 0
    } else data = data.subarray(this.offset - offset) // told once more after a lost connection
    this.offset = Math.max(this.offset, offset) + data.length
    this.parts.push(data)
    this.kept += data.length
    if (this.kept > 2 * this.limit) this.squeeze()
  }

  private squeeze(): Buffer {
    const all = Buffer.concat(this.parts)
    const data = all.subarray(Math.max(0, all.length - this.limit))
    this.parts = [data]
    this.kept = data.length
    return data
  }

  get data(): Buffer {
    return this.squeeze()
  }
}

function printed(verdict: Json, stream: Stream): number {
  const size = verdict[`${stream}_bytes`]
  return typeof size === "number" ? size : 0
}

function decoded(data: unknown, encoding: unknown): Buffer {
  if (typeof data !== "string") throw new LostError("an output is no text")
  return Buffer.from(data, encoding === "base64" ? "base64" : "utf8")
}

/** LostError: how it ended is not known, and it may be running. Other BerthErrors: it was not started. */
export async function run(client: Client, workspace: string, request: Run): Promise<Outcome> {
  const begun = now()
  const command = new Command(client, workspace, request)
  const verdict = await command.follow()
  if (verdict["verdict"] === "unknown")
    throw new LostError(String(verdict["text"] || "the service does not know how the command ended"))
  await command.complete(verdict)
  const [stdout, stderr] = streams.map((stream) => command.tails[stream].data) as [Buffer, Buffer]
  return {
    verdict,
    kind: String(verdict["verdict"]),
    exitStatus: Number(verdict["exit_status"]),
    stdout,
    stderr,
    truncated: { stdout: printed(verdict, "stdout") > stdout.length, stderr: printed(verdict, "stderr") > stderr.length },
    path: command.path,
    duration: now() - begun,
  }
}

class Command {
  readonly name = `a-${randomUUID().replaceAll("-", "")}`
  readonly tails: Record<Stream, Tail>
  path: string | undefined
  private deadline: number
  private begun = false
  private flooded = false
  private killed = false

  constructor(
    private readonly client: Client,
    private readonly workspace: string,
    private readonly request: Run,
  ) {
    this.tails = { stdout: new Tail(request.outputMax), stderr: new Tail(request.outputMax) }
    this.deadline = now() + (request.timeout ?? Infinity) + GRACE
  }

  private place(rest = ""): string {
    return place(this.workspace, `/exec/${this.name}${rest}`)
  }

  /** Its verdict, after connections that were lost, too. */
  async follow(): Promise<Json> {
    let silentSince: number | undefined
    let pause = 50
    for (;;) {
      try {
        let left = false
        let verdict: Json | undefined
        for await (const event of this.events()) {
          this.begun = true
          silentSince = undefined
          pause = 50
          if (event["event"] === "ended") verdict = event // and to the stream's end, so that its connection is kept
          left = this.take(event) || now() > this.deadline
          if (left) break
        }
        if (verdict !== undefined) return verdict
        if (!left) throw new LostError("a stream ended before the command")
      } catch (error) {
        this.endure(error)
      }
      const time = now()
      silentSince ??= time
      if (time - silentSince > times.recovery)
        throw new LostError(
          "the connection was lost while a command ran, and the service does not answer: " +
            "the command may have run, or be running",
        )
      await this.mindTheTime(time)
      if (!this.flooded) {
        await sleep(pause)
        pause = Math.min(2 * pause, 1000)
      }
    }
  }

  /** Throws what is not a reason to ask again. */
  private endure(error: unknown): void {
    if (!(error instanceof BerthError)) throw error
    if (error instanceof UnreachableError) {
      if (!this.begun && !this.client.mayReturn) throw error
    } else if (!(error instanceof LostError)) {
      if (this.begun && error.status === 404)
        throw new LostError("the service does not know the command any more", { cause: error })
      if (error.status !== 503) throw error
    }
  }

  /** The service ends it at its time. A service that does not say so is asked once to kill it. */
  private async mindTheTime(time: number): Promise<void> {
    if (time <= this.deadline) return
    if (this.killed) throw new LostError("the service does not tell how the command ended")
    this.killed = true
    this.deadline = time + GRACE
    await this.client.ask("POST", this.place("/kill"), { json: { grace_ms: 0 }, repeat: true }).catch(() => undefined)
  }

  private events(): AsyncGenerator<Json> {
    if (this.begun) {
      const from = (stream: Stream) => (this.flooded ? NOWHERE : String(this.tails[stream].offset))
      const query = { follow: "true", stdout: from("stdout"), stderr: from("stderr") }
      return this.client.events("GET", this.place(), { query, until: this.deadline })
    }
    const { argv, env, cwd, stdin, timeout, outputMax, mountPath } = this.request
    // By its ID it is run once, however often this is sent.
    const json: Json = {
      argv,
      env: env ?? {},
      cwd: cwd ?? "",
      id: this.name,
      mount_path: mountPath,
      max_output: Math.min(Math.max(2 * outputMax, KEPT_MIN), KEPT_MAX),
      // For so long it goes on alone: whoever was cut off comes back within that.
      linger_ms: times.recovery + times.stream,
    }
    if (timeout !== undefined) json["timeout_ms"] = Math.max(1, Math.round(timeout))
    if (stdin !== undefined) {
      json["stdin"] = Buffer.from(stdin).toString("base64")
      json["stdin_encoding"] = "base64"
    }
    return this.client.events("POST", place(this.workspace, "/exec"), { json, until: this.deadline })
  }

  /** Whether the stream is to be left, since there is too much of it. */
  private take(event: Json): boolean {
    if (event["event"] === "started" && typeof event["path"] === "string") this.path = event["path"]
    if (event["event"] !== "output") return false
    const { stream, offset } = event
    if ((stream !== "stdout" && stream !== "stderr") || typeof offset !== "number")
      throw new LostError("a stream has an output that is none")
    this.tails[stream].add(offset, decoded(event["data"], event["encoding"]))
    if (this.flooded || this.tails.stdout.offset + this.tails.stderr.offset <= FLOOD) return false
    this.flooded = true
    return true
  }

  /** Fetches the ends of what was not followed to its end. */
  async complete(verdict: Json): Promise<void> {
    const lacking = streams.filter((stream) => this.tails[stream].offset < printed(verdict, stream))
    if (lacking.length === 0) return
    const query: Record<string, string> = {}
    for (const stream of streams) {
      const size = printed(verdict, stream)
      query[stream] = String(lacking.includes(stream) ? Math.max(0, size - this.request.outputMax) : size)
    }
    const document = await this.client.document("GET", this.place(), { query, repeat: true })
    for (const stream of lacking)
      this.tails[stream].add(
        Number(document[`${stream}_offset`] ?? 0),
        decoded(document[stream], document[`${stream}_encoding`]),
      )
  }
}
