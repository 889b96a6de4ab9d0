/** The native HTTP interface of a Berth service (/v1), as far as sandboxes need it. Each failure says whether
 * anything has happened; requests are sent again only where that cannot do a thing twice. */

import type * as http from "node:http"
import { setTimeout as sleep } from "node:timers/promises"
import type { Transport } from "./transport.js"

export type Json = Record<string, unknown>

/** An answer is this at most: two outputs of 4 MiB in JSON, each byte at most six characters of it. */
const DOCUMENT_MAX = 64 << 20
const LINE_MAX = 16 << 20
/** An answer, or a line of a stream, may take a second more for so many bytes. Stops a service that sends a byte now and
 * then from holding its caller for ever. */
const RATE_MIN = 16 << 10
const STREAM_TYPE = "application/x-ndjson"

/** Milliseconds. An answer takes so long at most, and what its bytes may take; so does an event of a stream, which says
 * something every 10 s. */
export const times = {
  answer: 60_000,
  stream: 40_000,
  /** For how long a service that was there, and is not, is asked again. */
  recovery: 30_000,
  busy: 10_000,
}

/** A refusal. effect: whether anything has happened. */
export class BerthError extends Error {
  constructor(
    message: string,
    readonly status = 0,
    readonly errno = "",
    readonly effect: string = "none",
    options?: ErrorOptions,
  ) {
    super(message, options)
    this.name = "BerthError"
  }
}

/** No connection: nothing was asked. */
export class UnreachableError extends BerthError {}

/** It was asked, and there is no answer: what happened is not known. */
export class LostError extends BerthError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, 0, "", "unknown", options)
  }
}

export interface Request {
  query?: Record<string, string>
  json?: Json
  content?: Uint8Array
  fields?: Record<string, string>
  /** It may be sent again when its answer is lost. */
  repeat?: boolean
  /** A longer body is not read: it is empty then. */
  bodyMax?: number
  /** When a stream is cut off, by now(). */
  until?: number
}

export interface Answer {
  status: number
  fields: http.IncomingHttpHeaders
  body: Buffer
}

export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value)
}

export function now(): number {
  return performance.now()
}

/** A path below a workspace. */
export function place(workspace: string, rest = ""): string {
  return `/v1/workspaces/${encodeURIComponent(workspace)}${rest}`
}

export function filePlace(workspace: string, kind: "files" | "list" | "stat", path: string): string {
  const names = path.split("/").filter((name) => name !== "" && name !== ".")
  return place(workspace, `/${kind}/${names.map(encodeURIComponent).join("/")}`)
}

export class Client {
  private reached = false

  constructor(private readonly transport: Transport) {}

  get url(): string {
    return this.transport.url
  }

  /** Whether it is worth while to wait for a service that is not there: it was. */
  get mayReturn(): boolean {
    return this.reached
  }

  close(): void {
    this.transport.close()
  }

  async ask(method: string, path: string, request: Request = {}): Promise<Answer> {
    const begun = now()
    for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
      try {
        const response = await this.send(method, path, request, times.answer)
        const answer = await take(response, request.bodyMax ?? DOCUMENT_MAX)
        check(answer)
        return answer
      } catch (error) {
        if (!this.isWorthAnother(error, request, now() - begun)) throw error
      }
      await sleep(pause)
    }
  }

  private isWorthAnother(error: unknown, request: Request, spent: number): boolean {
    if (!(error instanceof BerthError)) return false
    if (error instanceof LostError) return Boolean(request.repeat) && this.reached && spent < times.recovery
    if (error instanceof UnreachableError) return this.reached && spent < times.recovery
    return error.status === 503 && error.effect === "none" && spent < times.busy
  }

  async document(method: string, path: string, request: Request = {}): Promise<Json> {
    const { body } = await this.ask(method, path, request)
    const value = parsed(body.toString("utf8"))
    if (!isObject(value)) throw new LostError("the service's answer is no object")
    return value
  }

  /** A stream of events up to its end, or to where the caller leaves it. */
  async *events(method: string, path: string, request: Request): AsyncGenerator<Json> {
    const fields = { ...request.fields, accept: STREAM_TYPE }
    const response = await this.send(method, path, { ...request, fields }, times.stream)
    if (response.statusCode !== 200) {
      check(await take(response, DOCUMENT_MAX))
      throw new LostError(`HTTP ${response.statusCode} for a stream`)
    }
    try {
      let rest: Buffer[] = []
      let length = 0
      for await (const chunk of response as AsyncIterable<Buffer>) {
        let from = 0
        for (let at = chunk.indexOf(10); at >= 0; at = chunk.indexOf(10, from)) {
          const line = Buffer.concat([...rest, chunk.subarray(from, at)]).toString("utf8")
          rest = []
          length = 0
          from = at + 1
          const event = parsed(line)
          if (!isObject(event)) throw new LostError("a stream has a line that is no event")
          yield event
        }
        rest.push(chunk.subarray(from))
        length += chunk.length - from
        if (length > LINE_MAX) throw new LostError("a stream has a line that does not end")
      }
      if (length > 0 || !response.complete) throw new LostError("a stream was cut off")
    } catch (error) {
      throw error instanceof BerthError ? error : new LostError(`a stream was cut off: ${text(error)}`, { cause: error })
    } finally {
      if (!response.complete) response.destroy()
    }
  }

  private send(method: string, path: string, request: Request, patience: number): Promise<http.IncomingMessage> {
    const headers: Record<string, string> = { ...request.fields }
    let content: Uint8Array | undefined = request.content
    if (request.json !== undefined) {
      content = Buffer.from(JSON.stringify(request.json))
      headers["content-type"] = "application/json"
    } else if (content !== undefined) headers["content-type"] = "application/octet-stream"
    if (content !== undefined) headers["content-length"] = String(content.byteLength)
    const query = request.query ? `?${new URLSearchParams(request.query)}` : ""
    return new Promise((resolve, reject) => {
      let outgoing: http.ClientRequest
      try {
        outgoing = this.transport.request({ method, path: path + query, headers })
      } catch (error) {
        reject(new UnreachableError(`${this.url}: ${text(error)}`, 0, "", "none", { cause: error }))
        return
      }
      let connected = false
      const watch = setTimeout(() => outgoing.destroy(new Error(`no answer within ${patience / 1000} s`)), patience)
      outgoing.on("socket", (socket) => {
        if (!socket.connecting) connected = true
        else socket.once("connect", () => (connected = true))
      })
      outgoing.on("error", (error) => {
        clearTimeout(watch)
        const why = [text(error), this.transport.explanation()].filter((part) => part !== "").join(": ")
        reject(
          connected
            ? new LostError(`the connection to ${this.url} was lost: ${why}`, { cause: error })
            : new UnreachableError(`${this.url} is not reached: ${why}`, 0, "", "none", { cause: error }),
        )
      })
      outgoing.on("response", (response) => {
        clearTimeout(watch)
        this.reached = true
        // Whatever is silent for so long has gone.
        const silent = setTimeout(() => response.destroy(new Error("nothing came any more")), patience)
        let begun = now()
        let bytes = 0
        response.on("data", (chunk: Buffer) => {
          silent.refresh()
          bytes += chunk.length
          if (headers["accept"] === STREAM_TYPE && chunk.includes(10)) {
            begun = now()
            bytes = 0
          }
          if (now() > Math.min(begun + patience + (bytes / RATE_MIN) * 1000, request.until ?? Infinity))
            response.destroy(new Error("it took too long"))
        })
        response.pause()
        response.on("close", () => clearTimeout(silent))
        resolve(response)
      })
      outgoing.end(content)
    })
  }
}

async function take(response: http.IncomingMessage, bodyMax: number): Promise<Answer> {
  const status = response.statusCode ?? 0
  const chunks: Buffer[] = []
  let length = 0
  if (status < 300 && Number(response.headers["content-length"]) > bodyMax) {
    response.destroy() // the caller looks at its fields
    return { status, fields: response.headers, body: Buffer.alloc(0) }
  }
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      chunks.push(chunk)
      length += chunk.length
      if (length > DOCUMENT_MAX) throw new Error("it is longer than any that the service gives")
    }
  } catch (error) {
    throw new LostError(`an answer was cut off: ${text(error)}`, { cause: error })
  }
  if (!response.complete) throw new LostError("an answer was cut off")
  return { status, fields: response.headers, body: Buffer.concat(chunks) }
}

function check(answer: Answer): void {
  if (answer.status < 400) return
  let problem: unknown
  try {
    problem = JSON.parse(answer.body.toString("utf8"))
  } catch {
    problem = undefined
  }
  if (!isObject(problem) || typeof problem["detail"] !== "string")
    throw new BerthError(`HTTP ${answer.status}`, answer.status, "", "unknown")
  throw new BerthError(
    problem["detail"],
    answer.status,
    String(problem["errno"] ?? ""),
    String(problem["effect"] ?? "unknown"),
  )
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch {
    throw new LostError("an answer has text that is no JSON")
  }
}

export function text(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error)
}
